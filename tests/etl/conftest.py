"""The folder of what the tests of this folder share."""

from __future__ import annotations

import sys
from pathlib import Path

# pytest imports test files by path; what they share lies beside them.
sys.path.insert(0, str(Path(__file__).parent))
