"""Jupyter kernels of this interpreter."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from traitlets.config import Config


def kernel_in(folder: Path) -> Path:
    """Writes the specification of a kernel `lakelens`, for JUPYTER_PATH=folder/jupyter."""
    spec = folder / "jupyter" / "kernels" / "lakelens"
    spec.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "lakelens", "language": "python"}))
    return spec


def sockets_in(folder: Path) -> Config:
    """Lets a kernel speak through files: of ports that are found free, another process may take one before it does."""
    return Config({"KernelManager": {"transport": "ipc", "ip": str(folder / "kernel")}})
