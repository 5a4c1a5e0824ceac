"""Environments for peers that cannot share lakelens's own.

    python -m benchmarks.peers torch --folder KEPT

TorchDistributor needs PyTorch; PyPI's wheel of it brings CUDA's libraries along, 6 GB in all. optuna brings SQLAlchemy,
which searches have no use for. horovod.spark.run and Petastorm's converter run in lakelens's own environment.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from pathlib import Path

# TorchDistributor runs its ranks through pandas and pyarrow, which PySpark itself does not require.
PACKAGES = {
    "optuna": ("optuna==5.0.0",),
    "torch": ("torch==2.15.0", "pyspark==3.5.9", "numpy<2", "pandas<2.3", "pyarrow==14.0.2"),
}
_READY = "ready"


def peer_python(name: str, folder: Path) -> Path | None:
    """Finds the interpreter of a peer's environment; None when it has not been made."""
    home = folder.resolve() / f"peer-{name}"
    ready = home / _READY
    complete = ready.exists() and ready.read_text(encoding="utf-8").split() == list(PACKAGES[name])
    return home / "bin" / "python" if complete else None


def make_peer(name: str, folder: Path) -> Path:
    """Makes a peer's environment with pip, unless it is there.

    Raises:
        subprocess.CalledProcessError: If pip cannot install the packages.
    """
    found = peer_python(name, folder)
    if found is not None:
        return found
    home = folder.resolve() / f"peer-{name}"
    venv.create(home, with_pip=True, clear=True)
    python = home / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-cache-dir", *PACKAGES[name]], check=True)
    (home / _READY).write_text("\n".join(PACKAGES[name]), encoding="utf-8")
    return python


def main(argv: list[str] | None = None) -> int:
    """Runs the command."""
    flags = argparse.ArgumentParser(description="Make the environment of a peer.")
    flags.add_argument("name", choices=sorted(PACKAGES))
    flags.add_argument("--folder", type=Path, required=True, help="where environments are kept")
    arguments = flags.parse_args(argv)
    print(make_peer(arguments.name, arguments.folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
