"""Environments for peers that cannot share lakelens's own.

    python -m benchmarks.peers torch --folder KEPT

PyTorch: for TorchDistributor, and for the feed's PyTorch users. Where PyTorch's own index can be reached, pip takes
its CPU build (0.2 GB); the wheel on PyPI includes CUDA's libraries (2.8 GB to download, 6 GB on the disk).
MosaicML Streaming brings the clients of all clouds. optuna brings SQLAlchemy, unused by searches; next to it
is what the searchers and the digits need.
horovod.spark.run and Petastorm's converter run in lakelens's own environment.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import venv
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parent.parent
# 2.12 is the last PyTorch that does not ask for a setuptools without what Petastorm imports.
_TORCH = "torch==2.12.1"
_LOCK = "constraints/spark-3.5.txt"  # its pyarrow is the last that Petastorm's own reader works with
_TORCH_FOR_PROCESSORS = "https://download.pytorch.org/whl/cpu"
PACKAGES = {
    "optuna": ("optuna==5.0.0", "pydantic==2.14.3", "ruamel.yaml==0.19.1", "scikit-learn==1.9.1"),
    "streaming": (_TORCH, f"{_CHECKOUT}[petastorm]", "mosaicml-streaming==0.13.0"),
    "torch": (_TORCH, f"{_CHECKOUT}[petastorm]", "pyspark==3.5.9"),
}
_READY = "ready"


def peer_python(name: str, folder: Path) -> Path | None:
    """Finds the interpreter of a peer's environment; None when it has not been made."""
    home = folder.resolve() / f"peer-{name}"
    ready = home / _READY
    complete = ready.exists() and ready.read_text(encoding="utf-8") == _wanted(name)
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
    python = home / "bin" / "python"
    if not python.exists():
        venv.create(home, with_pip=True, clear=True)
    install = [python, "-m", "pip", "install", "--quiet", "--no-cache-dir"]
    if _TORCH in PACKAGES[name]:
        # Not every network reaches that index; the install below then takes PyPI's build.
        index = ["--index-url", _TORCH_FOR_PROCESSORS, "--retries", "0", "--timeout", "15"]
        subprocess.run([*install, *index, _TORCH], check=False, stderr=subprocess.DEVNULL)
        install += ["--constraint", str(_CHECKOUT / _LOCK)]
    subprocess.run([*install, *PACKAGES[name]], check=True)
    (home / _READY).write_text(_wanted(name), encoding="utf-8")
    return python


def _wanted(name: str) -> str:
    """Describes what an environment is made of: when it changes, pip updates the environment."""
    files = ("setup.py", _LOCK) if _TORCH in PACKAGES[name] else ()
    digests = (hashlib.sha256((_CHECKOUT / file).read_bytes()).hexdigest() for file in files)
    return "\n".join([*PACKAGES[name], *digests])


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
