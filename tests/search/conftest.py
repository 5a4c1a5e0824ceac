"""What the tests of searchers share."""

from __future__ import annotations

import sys
from pathlib import Path

import hypothesis

# pytest imports test files by path; what they share lies beside them.
sys.path.insert(0, str(Path(__file__).parent))

# A deadline for each example would be a measured time, which a loaded machine misses.
hypothesis.settings.register_profile("lakelens", deadline=None)
hypothesis.settings.load_profile("lakelens")
