"""What setup.py declares, read without building anything."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any
from unittest import mock


def setup_arguments() -> dict[str, Any]:
    """The arguments that setup.py gives to setuptools."""
    with mock.patch("setuptools.setup") as called:
        runpy.run_path(str(Path(__file__).resolve().parents[1] / "setup.py"))
    arguments: dict[str, Any] = called.call_args.kwargs
    return arguments
