"""Environments for peers that cannot share lakelens's own.

    python -m benchmarks.peers torch --folder KEPT

PyTorch: for TorchDistributor, and for the feed's PyTorch users. Where PyTorch's own index can be reached, pip takes
its CPU build (0.2 GB); the wheel on PyPI includes CUDA's libraries (2.8 GB to download, 6.7 GB on the disk).
MosaicML Streaming brings the clients of all clouds. optuna brings SQLAlchemy, unused by searches; next to it
is what the searchers and the digits need. `scoring` has Daft, which wants an older tqdm, and Ray Data, with TensorFlow
and Pillow.
Petastorm's own reader needs pyarrow 14: where lakelens's environment has a newer one, `petastorm` is an environment of
the stack `spark-3.5`, with its Python. horovod.spark.run runs in lakelens's own environment.
"""

from __future__ import annotations

import argparse
import atexit
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parent.parent
# 2.12 is the last PyTorch that does not ask for a setuptools without what Petastorm imports.
_TORCH = "torch==2.12.1"
_VISION = "torchvision==0.27.1"
_TORCH_FOR_PROCESSORS = "https://download.pytorch.org/whl/cpu"
PACKAGES = {
    # The versions of constraints/spark-4.1.txt; its tqdm is newer than Daft takes.
    "scoring": (
        "daft[deltalake,iceberg]==0.7.26",  # its writers of Delta import pyiceberg
        "deltalake==1.6.6",
        "keras==3.15.1",
        "numpy==2.5.5",
        "pillow==13.0.0",
        "psutil==7.2.2",
        "pyarrow==25.0.1",
        "ray[data]==2.60.0",
        "aiohttp",  # which Ray imports to read local files
        "tensorflow==2.21.0",
    ),
    "optuna": ("optuna==5.0.0", "pydantic==2.14.3", "ruamel.yaml==0.19.1", "scikit-learn==1.9.1"),
    "petastorm": (f"{_CHECKOUT}[spark,training,petastorm]",),
    "streaming": (_TORCH, f"{_CHECKOUT}[petastorm]", "mosaicml-streaming==0.13.0"),
    # With the packages that run the tests and a notebook, and torchmetrics, which a Trial's user may bring.
    "torch": (
        _TORCH,
        _VISION,
        f"{_CHECKOUT}[torch,petastorm,spark,search,java]",
        "hypothesis",
        "ipykernel",
        "nbclient",
        "pytest",
        "pytest-timeout",
        "pytest-xdist",
        "torchmetrics==1.9.0",
    ),
}
# The stack with the last pyarrow that Petastorm's own reader works with; PyTorch's tests use the default stack.
_LOCKS = dict.fromkeys(("petastorm", "streaming"), "constraints/spark-3.5.txt") | {"torch": "constraints/spark-4.1.txt"}
_PYARROW_OF_PETASTORM = 14


def petastorm_python(folder: Path) -> Path:
    """Finds or makes the interpreter for Petastorm's own reader: this one if its pyarrow is old enough."""
    if int(metadata.version("pyarrow").split(".")[0]) <= _PYARROW_OF_PETASTORM:
        return Path(sys.executable)
    return make_peer("petastorm", folder)


def start_ray(processors: int) -> None:
    """Starts Ray on this machine, in an environment that has it."""
    import ray

    folder = tempfile.mkdtemp(prefix="ray-")  # its sockets need a path that is shorter than folders of benchmarks are
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    ray.init(num_cpus=processors, include_dashboard=False, _temp_dir=folder)
    ray.data.DataContext.get_current().enable_progress_bars = False


def versions_in(python: Path, *packages: str) -> dict[str, str]:
    """Finds the versions of packages of a peer's environment."""
    code = "import json, sys; from importlib.metadata import version; print(json.dumps([*map(version, sys.argv[1:])]))"
    found = subprocess.run([python, "-c", code, *packages], stdout=subprocess.PIPE, check=True)
    return dict(zip(packages, json.loads(found.stdout), strict=True))


def make_peer(name: str, folder: Path) -> Path:
    """Makes a peer's environment with pip, unless it is there; gives its interpreter."""
    home = folder.resolve() / f"peer-{name}"
    python, ready = home / "bin" / "python", home / "ready"
    if ready.exists() and ready.read_text(encoding="utf-8") == _wanted(name):
        return python
    if not python.exists():
        maker = _python_of(_LOCKS[name]) if name in _LOCKS else sys.executable
        subprocess.run([maker, "-m", "venv", "--clear", home], check=True)
    install = [python, "-m", "pip", "install", "--quiet", "--no-cache-dir"]
    if _TORCH in PACKAGES[name]:
        # Not every network reaches that index; the install below then takes PyPI's build.
        index = ["--index-url", _TORCH_FOR_PROCESSORS, "--retries", "0", "--timeout", "15"]
        wanted = [package for package in PACKAGES[name] if package in (_TORCH, _VISION)]
        subprocess.run([*install, *index, *wanted], check=False, stderr=subprocess.DEVNULL)
    if name in _LOCKS:
        install += ["--constraint", str(_CHECKOUT / _LOCKS[name])]
    subprocess.run([*install, *PACKAGES[name]], check=True)
    ready.write_text(_wanted(name), encoding="utf-8")
    return python


def _python_of(lock: str) -> str:
    """Finds a Python of a stack."""
    found = re.search(r"^# Python: (.+)$", (_CHECKOUT / lock).read_text(encoding="utf-8"), re.MULTILINE)
    variables = {**os.environ, "FIND_PYTHON_VERSIONS": found[1]} if found else None
    search = subprocess.run([_CHECKOUT / ".ci" / "find-python"], stdout=subprocess.PIPE, env=variables, check=True)
    return search.stdout.decode().strip()


def _wanted(name: str) -> str:
    """Describes what an environment is made of: when it changes, pip updates the environment."""
    files = ("setup.py", _LOCKS[name]) if name in _LOCKS else ()
    digests = (hashlib.sha256((_CHECKOUT / file).read_bytes()).hexdigest() for file in files)
    packages = (package.replace(str(_CHECKOUT), ".") for package in PACKAGES[name])  # of any checkout
    return "\n".join([*packages, *digests])


if __name__ == "__main__":
    flags = argparse.ArgumentParser(description="Make the environment of a peer.")
    flags.add_argument("name", choices=sorted(PACKAGES))
    flags.add_argument("--folder", type=Path, required=True, help="where environments are kept")
    arguments = flags.parse_args()
    print(make_peer(arguments.name, arguments.folder))
