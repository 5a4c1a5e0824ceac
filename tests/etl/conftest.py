"""Makes the helpers importable."""

from __future__ import annotations

import sys
from pathlib import Path

# pytest imports test files by path; what they share lies beside them.
sys.path.insert(0, str(Path(__file__).parent))
