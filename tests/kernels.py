"""Jupyter kernels of this interpreter."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from traitlets.config import Config


def kernel_in(folder: Path) -> None:
    """Writes the specification of a kernel `lakelens`, for JUPYTER_PATH=folder/jupyter."""
    spec = folder / "jupyter" / "kernels" / "lakelens"
    spec.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "lakelens", "language": "python"}))


def outputs_of(notebook: Any, folder: Path, place: Path, allow_errors: bool = False) -> list[Any]:
    """Runs a notebook at a place, with the kernel of a folder; returns the outputs of all cells."""
    from nbclient import NotebookClient

    # Of ports that are found free, another process may take one before the kernel does: it speaks through files.
    sockets = Config({"KernelManager": {"transport": "ipc", "ip": str(folder / "kernel")}})
    resources = {"metadata": {"path": str(place)}}
    options = {"timeout": 600, "allow_errors": allow_errors, "kernel_name": "lakelens", "resources": resources}
    NotebookClient(notebook, config=sockets, **options).execute()
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]
