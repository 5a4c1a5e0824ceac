"""Compiles Horovod against the TensorFlow of the running environment and keeps the wheel for the next one.

    python -m lakelens.horovod_build            # CPU
    python -m lakelens.horovod_build --gpu      # NCCL; needs CUDA's and NCCL's headers

Horovod has no wheels on PyPI, and a plain `pip install horovod` builds in isolation: without TensorFlow, silently.
Only the standard library is used, so that this runs before anything is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from . import horovod_patch
from .errors import BuildError, LakelensError, MissingDependencyError, UsageError
from .logged import last_lines, run_logged, say

HOROVOD = "0.28.1"
# cmake 4 refuses the policy versions of Horovod's CMakeLists; setuptools 70 dropped what its setup.py imports.
BUILD_TOOLS = ("cmake>=3.13,<4", "setuptools<70", "wheel", "packaging")
TENSORFLOW_NAMES = ("tensorflow", "tensorflow-cpu", "tensorflow-macos", "tensorflow-cpu-aws")
COMMAND = "python -m lakelens.horovod_build"
# One real sum through Gloo: an import alone does not resolve every symbol.
_SELF_TEST = """
import horovod.tensorflow as hvd, tensorflow as tf
hvd.init()
total = hvd.allreduce(tf.ones(3), op=hvd.Sum)
raise SystemExit(0 if hvd.gloo_built() and float(total[0]) == hvd.size() else "Horovod runs, but without Gloo")
"""


@dataclass(frozen=True)
class Tool:
    """A program that the compilation needs, and the packages that bring it.

    Attributes:
        name: What it is called in a message.
        programs: Any of these on PATH will do.
        packages: How apt, dnf and brew call it.
    """

    name: str
    programs: tuple[str, ...]
    packages: str


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


def check_tools(environ: Mapping[str, str] = os.environ) -> None:
    """Checks that what the compilation needs is on PATH, before anything is downloaded.

    Raises:
        MissingDependencyError: If a tool is missing; names the package that brings it.
    """
    path = environ.get("PATH", os.defpath)
    missing = []
    for tool in TOOLS:
        chosen = environ.get("CXX", "").split()[:1] if "g++" in tool.programs else []
        if not any(shutil.which(program, path=path) for program in chosen or tool.programs):
            named = f" (CXX={chosen[0]} does not exist)" if chosen else ""
            missing.append(f"{tool.name} is missing{named}: {tool.packages}")
    if missing:
        raise MissingDependencyError("Horovod has to be compiled on this machine, and " + "; ".join(missing))


def tensorflow_version() -> str | None:
    """Reads the version of the installed TensorFlow without importing it; None when there is none."""
    for name in TENSORFLOW_NAMES:
        with contextlib.suppress(PackageNotFoundError):
            return version(name)
    return None


def built_for() -> str | None:
    """Reads which TensorFlow the installed Horovod was compiled for; None without Horovod, `""` when it names none."""
    try:
        metadata = Path(str(distribution("horovod").locate_file("horovod/metadata.json")))
    except PackageNotFoundError:
        return None
    try:
        return str(json.loads(metadata.read_text(encoding="utf-8")).get("tensorflow", ""))
    except (OSError, ValueError):
        return ""


def problem() -> str | None:
    """Says what is wrong with the installed Horovod and how to mend it, from files alone; None when nothing is.

    Costs a millisecond: neither TensorFlow nor Horovod is imported.
    """
    wanted, found = tensorflow_version(), built_for()
    if wanted is None:
        return "TensorFlow is not installed: pip install 'lakelens[training]'"
    if found is None:
        return f"Horovod is not installed; compile it (about 3 minutes, once): {COMMAND}"
    if found == "":
        return f"Horovod was installed without TensorFlow support; compile it again: {COMMAND}"
    if found != wanted:
        return f"Horovod was compiled for TensorFlow {found}, and {wanted} is installed; compile it again: {COMMAND}"
    return None


def is_changed() -> bool:
    """Tells whether the installed Horovod was compiled here, with the change of `horovod_patch`."""
    try:
        return horovod_patch.is_applied(version("horovod"))
    except PackageNotFoundError:
        return False


def cache_root(environ: Mapping[str, str] = os.environ) -> Path:
    """Gives the folder of kept wheels: `$XDG_CACHE_HOME/lakelens/wheels`, or the same below `~/.cache`."""
    named = environ.get("XDG_CACHE_HOME", "")
    # The XDG rule: a relative path is to be ignored.
    base = Path(named) if named and Path(named).is_absolute() else Path.home() / ".cache"
    return base / "lakelens" / "wheels"


def wheel_key(tensorflow: str, *, gpu: bool = False) -> str:
    """Names everything that a compiled Horovod depends on; a folder of the cache has this name."""
    library, release = platform.libc_ver()
    parts = (
        f"horovod-{HOROVOD}+{horovod_patch.MARK}",
        f"tensorflow-{tensorflow}",
        f"cp{sys.version_info.major}{sys.version_info.minor}",
        sysconfig.get_platform(),
        f"{library or platform.system().lower()}-{release or platform.release()}",
        "nccl" if gpu else "cpu",
    )
    return "_".join(re.sub(r"[^\w.+-]", "-", part) for part in parts)


def kept_wheel(tensorflow: str, *, gpu: bool = False) -> Path | None:
    """Finds the kept wheel for `tensorflow` and this interpreter; None when it has to be compiled."""
    for wheel in sorted((cache_root() / wheel_key(tensorflow, gpu=gpu)).glob("horovod-*.whl")):
        if _wheel_is_for(wheel, tensorflow):
            return wheel
    return None


def ensure(*, gpu: bool = False, force: bool = False) -> str:
    """Makes the running environment's Horovod fit its TensorFlow, from the cache or by compiling.

    Args:
        gpu: Compile with NCCL for allreduce on GPUs.
        force: Compile even when a fitting Horovod is installed or kept.

    Returns:
        One line that says what was done.

    Raises:
        MissingDependencyError: If TensorFlow, pip or a tool for compiling is missing.
        BuildError: If the compilation fails or its result does not run; names the log.
    """
    tensorflow = tensorflow_version()
    if tensorflow is None:
        raise MissingDependencyError("TensorFlow has to be installed before Horovod: pip install 'lakelens[training]'")
    if importlib.util.find_spec("pip") is None:
        raise MissingDependencyError(f"{sys.executable} has no pip; {sys.executable} -m ensurepip brings it")
    if not force and not gpu and problem() is None and is_changed() and _self_test() is None:
        return f"Horovod {HOROVOD} for TensorFlow {tensorflow} is there"
    key = wheel_key(tensorflow, gpu=gpu)
    with _locked(key) as folder:
        wheel = None if force else kept_wheel(tensorflow, gpu=gpu)
        if wheel is not None:
            _install(wheel)
            if _self_test() is None:
                return f"installed Horovod {HOROVOD} for TensorFlow {tensorflow} from {wheel}"
            say(f"the kept wheel does not run here, compiling again: {wheel}")
            wheel.unlink()
        started = time.monotonic()
        wheel = _compile(folder, tensorflow, gpu=gpu)
        _install(wheel)
        failure = _self_test()
        if failure is not None:
            wheel.unlink()
            log = folder / "build.log"
            raise BuildError(f"Horovod compiled but does not run with TensorFlow {tensorflow}:\n{failure}\nLog: {log}")
        seconds = time.monotonic() - started
        return f"compiled Horovod {HOROVOD} for TensorFlow {tensorflow} in {seconds:.0f} s; kept as {wheel}"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Returns:
        0 when Horovod fits, 1 when the compilation failed, 2 when something has to be installed first.
    """
    parser = argparse.ArgumentParser(prog=COMMAND, description="Compile Horovod for this environment's TensorFlow.")
    parser.add_argument("--gpu", action="store_true", help="allreduce on GPUs with NCCL")
    parser.add_argument("--force", action="store_true", help="compile even if a fitting Horovod is installed or kept")
    args = parser.parse_args(argv)
    # Without this a terminated build would leave its compiler running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        say(ensure(gpu=args.gpu, force=args.force))
    except LakelensError as error:
        say(f"error: {error}")
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        say("interrupted; the next call starts the compilation again")
        return 130
    return 0


def _wheel_is_for(wheel: Path, tensorflow: str) -> bool:
    try:
        with zipfile.ZipFile(wheel) as archive:
            metadata = json.loads(archive.read("horovod/metadata.json"))
            has_library = any("horovod/tensorflow/mpi_lib" in name for name in archive.namelist())
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        return False
    return has_library and metadata.get("tensorflow") == tensorflow


@contextlib.contextmanager
def _locked(key: str) -> Iterator[Path]:
    """Yields the key's folder of the cache while no other process builds for the same key."""
    folder = cache_root() / key
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
    except OSError as error:
        raise MissingDependencyError(
            f"the cache of compiled wheels {folder} cannot be written ({error.strerror}); "
            "set XDG_CACHE_HOME to a folder that can"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that compiles {key}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def _compile(folder: Path, tensorflow: str, *, gpu: bool) -> Path:
    check_tools()
    log = folder / "build.log"
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
        if code != 0 or built is None or not _wheel_is_for(built, tensorflow):
            raise BuildError(_failure_text(log, code))
        kept = folder / built.name
        # Renamed into place, so that no reader ever sees half a wheel.
        arriving = folder / f".{built.name}.{os.getpid()}"
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
    _pip(
        ["download", "--quiet", "--no-cache-dir", *options, f"horovod=={HOROVOD}"],
        environment,
        f"the source of Horovod {HOROVOD} could not be downloaded",
    )
    shutil.unpack_archive(next(archives.glob("horovod-*.tar.gz")), workspace)
    source = workspace / f"horovod-{HOROVOD}"
    horovod_patch.apply(source)
    return source


def _build_environment(workspace: Path, *, gpu: bool) -> dict[str, str]:
    """Derives the compiler's environment, with build tools of its own where the installed ones do not fit."""
    environment = _pip_environment()
    tools = workspace / "tools"
    _pip(
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
        # Below make this variable is set already, and Horovod would then compile one file at a time.
        "MAKEFLAGS": f"-j{os.cpu_count() or 2}",
    }
    environment.pop("MFLAGS", None)
    if gpu:
        environment["HOROVOD_GPU_OPERATIONS"] = "NCCL"
    return environment


def _pip_environment() -> dict[str, str]:
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


def _pip(arguments: Sequence[str], environment: Mapping[str, str], failure: str) -> None:
    command = [sys.executable, "-m", "pip", *arguments]
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{failure}: pip ended with {done.returncode}\n{last_lines(done.stdout + done.stderr)}")


def _install(wheel: Path) -> None:
    _pip(
        ["install", "--quiet", "--no-deps", "--no-index", "--force-reinstall", str(wheel)],
        _pip_environment(),
        f"{wheel} could not be installed",
    )


def _self_test() -> str | None:
    """Runs one allreduce in a process of its own; None when it is right, else what it said."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
    environment |= {"TF_CPP_MIN_LOG_LEVEL": "2"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _SELF_TEST],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "its allreduce did not end within 300 s"
    if done.returncode == 0:
        return None
    return last_lines(done.stderr) or f"it ended with {done.returncode}"


def _percent(line: str) -> str | None:
    """Reads make's percentage from one line of the build."""
    found = re.match(r"\s*\[\s*(\d+)%\]", line)
    return f"{found.group(1)} %" if found else None


def _failure_text(log: Path, code: int) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line for line in lines if re.search(r"\berror\b[: ]", line, re.IGNORECASE)][:5]
    shown = "\n".join([*errors, "...", *lines[-25:]])
    return f"Horovod did not compile (pip ended with {code}). The whole log: {log}\n{shown}"


if __name__ == "__main__":
    sys.exit(main())
