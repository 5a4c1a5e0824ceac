"""Compiles Horovod's source into a wheel for the TensorFlow of the running environment.

Only the standard library is used, so that this runs before anything is installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import uuid
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import horovod_patch
from .errors import BuildError, MissingDependencyError
from .logged import last_lines, run_logged, say

HOROVOD = "0.28.1"
# cmake 4 refuses the policy versions of Horovod's CMakeLists; setuptools 70 dropped what its setup.py imports.
BUILD_TOOLS = ("cmake>=3.13,<4", "setuptools<70", "wheel", "packaging")
# Standard headers that Horovod and its Gloo use without including them; up to gcc 12 others brought them in.
HEADERS = "-include cstdint -include stdexcept -include string"


@dataclass(frozen=True)
class Tool:
    """A program that the compilation needs, and the packages that bring it."""

    name: str  # What it is called in a message
    programs: tuple[str, ...]  # Any of these on PATH will do
    packages: str  # How apt, dnf and brew call it


TOOLS = (
    Tool(
        "a C++ compiler (g++)",
        ("g++", "c++", "clang++"),
        "apt-get install g++ (Debian, Ubuntu), dnf install gcc-c++ (Fedora, RHEL), brew install gcc (macOS)",
    ),
    Tool(
        "make",
        ("make", "gmake"),
        "apt-get install make (Debian, Ubuntu), dnf install make (Fedora, RHEL), brew install make (macOS)",
    ),
)


# What Horovod imports, by the name to import and the package; pip installs the wheel without its requirements.
IMPORTED = {"cloudpickle": "cloudpickle", "packaging": "packaging", "psutil": "psutil", "yaml": "pyyaml"}


def check_imported() -> None:
    """Checks that the packages that Horovod imports are installed, before it is compiled and tried."""
    missing = [package for name, package in IMPORTED.items() if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDependencyError(f"Horovod imports packages that are missing: pip install {' '.join(missing)}")


def check_tools(environ: Mapping[str, str] = os.environ) -> None:
    """Checks that what the compilation needs is on PATH, before anything is downloaded."""
    path = environ.get("PATH", os.defpath)
    missing = []
    for tool in TOOLS:
        chosen = environ.get("CXX", "").split()[:1] if "g++" in tool.programs else []
        if not any(shutil.which(program, path=path) for program in chosen or tool.programs):
            named = f" (CXX={chosen[0]} does not exist)" if chosen else ""
            missing.append(f"{tool.name} is missing{named}: {tool.packages}")
    if missing:
        raise MissingDependencyError("Horovod has to be compiled on this machine, and " + "; ".join(missing))


def compile_wheel(folder: Path, log: Path, tensorflow: str, *, gpu: bool) -> Path:
    """Compiles a wheel into a folder."""
    check_tools()
    with tempfile.TemporaryDirectory(prefix="lakelens-horovod-") as workspace:
        environment = _build_environment(Path(workspace), gpu=gpu)
        source = _source(Path(workspace), environment)
        wheels = Path(workspace) / "wheels"
        command = [sys.executable, "-m", "pip", "wheel", "--verbose", "--no-deps", "--no-build-isolation"]
        # pip keeps what it builds by its source alone: its cache would hand out a wheel for another TensorFlow.
        command += ["--no-cache-dir", "--wheel-dir", str(wheels), str(source)]
        say(f"compiling Horovod {HOROVOD} for TensorFlow {tensorflow}: about 3 minutes on 2 cores; log: {log}")
        code = run_logged(command, log, "compiling Horovod", _percent, environment)
        built = next(iter(wheels.glob("horovod-*.whl")), None)
        if code != 0 or built is None or not wheel_is_for(built, tensorflow):
            raise BuildError(_failure_text(log, code))
        kept = folder / built.name
        # Renamed into place: no reader sees half a wheel. Machines that share the folder may have equal process ids.
        arriving = folder / f".{built.name}.{uuid.uuid4().hex}"
        try:
            shutil.copyfile(built, arriving)
            arriving.replace(kept)
        finally:
            arriving.unlink(missing_ok=True)
        return kept


def _source(workspace: Path, environment: Mapping[str, str]) -> Path:
    """Downloads Horovod's source and changes it (see `horovod_patch`)."""
    archives = workspace / "archives"
    options = ["--no-deps", "--no-build-isolation", "--no-binary", "horovod", "--dest", str(archives)]
    run_pip(
        ["download", "--quiet", "--no-cache-dir", *options, f"horovod=={HOROVOD}"],
        environment,
        f"the source of Horovod {HOROVOD} could not be downloaded",
    )
    shutil.unpack_archive(next(archives.glob("horovod-*.tar.gz")), workspace)
    source = workspace / f"horovod-{HOROVOD}"
    horovod_patch.apply(source)
    return source


def _build_environment(workspace: Path, *, gpu: bool) -> dict[str, str]:
    """Derives the compiler's environment, with separate build tools if the installed ones do not fit."""
    environment = pip_environment()
    tools = workspace / "tools"
    run_pip(
        ["install", "--quiet", "--target", str(tools), *BUILD_TOOLS],
        environment,
        "the build tools could not be installed",
    )
    environment |= {
        "PYTHONPATH": str(tools),
        "PATH": f"{tools / 'bin'}{os.pathsep}{environment.get('PATH', os.defpath)}",
        "HOROVOD_CMAKE": str(tools / "bin" / "cmake"),
        "HOROVOD_WITH_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_MPI": "1",
        "CXXFLAGS": f"{HEADERS} {environment.get('CXXFLAGS', '')}".strip(),
        # Below make this variable is set already, and Horovod would then compile one file at a time.
        "MAKEFLAGS": f"-j{os.cpu_count() or 2}",
    }
    environment.pop("MFLAGS", None)
    if gpu:
        environment["HOROVOD_GPU_OPERATIONS"] = "NCCL"
    return environment


def pip_environment() -> dict[str, str]:
    """Derives an environment in which pip installs into this interpreter and nowhere else."""
    dropped = (
        "PYTHONPATH",
        "PYTHONHOME",
        "PIP_TARGET",
        "PIP_PREFIX",
        "PIP_USER",
        "PIP_CONSTRAINT",
        "PIP_REQUIRE_HASHES",
    )
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return kept | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONUNBUFFERED": "1"}


def run_pip(arguments: Sequence[str], environment: Mapping[str, str], failure: str) -> None:
    """Runs pip for this interpreter."""
    command = [sys.executable, "-m", "pip", *arguments]
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{failure}: pip ended with {done.returncode}\n{last_lines(done.stdout + done.stderr)}")


def _percent(line: str) -> str | None:
    """Reads make's percentage from one line of the build."""
    found = re.match(r"\s*\[\s*(\d+)%\]", line)
    return f"{found.group(1)} %" if found else None


def _failure_text(log: Path, code: int) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line for line in lines if re.search(r"\berror\b[: ]", line, re.IGNORECASE)][:5]
    shown = "\n".join([*errors, "...", *lines[-25:]])
    return f"Horovod did not compile (pip ended with {code}). The whole log: {log}\n{shown}"


def wheel_is_for(wheel: Path, tensorflow: str) -> bool:
    """Returns whether a wheel is whole and was compiled against a version of TensorFlow."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            metadata = json.loads(archive.read("horovod/metadata.json"))
            has_library = any("horovod/tensorflow/mpi_lib" in name for name in archive.namelist())
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        return False
    return has_library and metadata.get("tensorflow") == tensorflow
