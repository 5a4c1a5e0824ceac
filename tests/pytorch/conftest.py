"""Makes the helper modules of training tests importable here, and leaves out these tests without PyTorch."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "training")]

# The environment of the other tests has no PyTorch: `tests/training/stories/test_torch.py` runs these in their own.
collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]
