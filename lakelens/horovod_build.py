"""Compiles Horovod against the TensorFlow of the running environment and keeps the wheel for the next one.

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
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from . import horovod_patch
from .errors import BuildError, LakelensError, MissingDependencyError, UsageError

HOROVOD = "0.28.1"
TENSORFLOW_NAMES = ("tensorflow", "tensorflow-cpu", "tensorflow-macos", "tensorflow-cpu-aws")
COMMAND = "python -m lakelens.horovod_build"
_SELF_TEST_S = 300
# cmake 4 refuses the policy versions of Horovod's CMakeLists; setuptools 70 dropped what its setup.py imports.
_BUILD_TOOLS = ("cmake>=3.13,<4", "setuptools<70", "wheel", "packaging")
# Standard headers that Horovod and its Gloo use without including them; up to gcc 12 others brought them in.
_HEADERS = "-include cstdint -include stdexcept -include string"
# What the compilation needs: programs of which any will do, and how apt, dnf and brew call their package.
_PROGRAMS = {
    ("g++", "c++", "clang++"): "a C++ compiler (g++) is missing{}: apt-get install g++ (Debian, Ubuntu), "
    "dnf install gcc-c++ (Fedora, RHEL), brew install gcc (macOS)",
    ("make", "gmake"): "make is missing{}: apt-get install make, dnf install make, brew install make",
}
# What Horovod imports, by the name to import and the package; pip installs the wheel without its requirements.
IMPORTED = {"cloudpickle": "cloudpickle", "packaging": "packaging", "psutil": "psutil", "yaml": "pyyaml"}
# Variables that would lead pip elsewhere than into this interpreter, or tell make of one above it.
_DROPPED = {"PYTHONPATH", "PYTHONHOME"} | {f"PIP_{name}" for name in ("TARGET", "PREFIX", "USER", "CONSTRAINT")}
_DROPPED |= {"PIP_REQUIRE_HASHES", "MFLAGS"}


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
    """Describes what is wrong with the installed Horovod and how to fix it, from files alone; None if it is usable."""
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
    """Returns whether the installed Horovod was compiled here, with the change of `horovod_patch`."""
    try:
        return horovod_patch.is_applied(version("horovod"))
    except PackageNotFoundError:
        return False


def cache_root(environ: Mapping[str, str] = os.environ) -> Path:
    """Returns the folder of kept wheels: `$XDG_CACHE_HOME/lakelens/wheels`, or the same below `~/.cache`."""
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
        if _is_for(wheel, tensorflow):
            return wheel
    return None


def ensure(*, gpu: bool = False, force: bool = False) -> str:
    """Makes the running environment's Horovod fit its TensorFlow, from the kept wheel or by compiling."""
    tensorflow = tensorflow_version()
    if tensorflow is None:
        raise MissingDependencyError("TensorFlow has to be installed before Horovod: pip install 'lakelens[training]'")
    if importlib.util.find_spec("pip") is None:
        raise MissingDependencyError(f"{sys.executable} has no pip; {sys.executable} -m ensurepip brings it")
    missing = [package for name, package in IMPORTED.items() if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDependencyError(f"Horovod imports packages that are missing: pip install {' '.join(missing)}")
    if not force and not gpu and problem() is None and is_changed() and _self_test() is None:
        return f"Horovod {HOROVOD} for TensorFlow {tensorflow} is there"
    with _locked(wheel_key(tensorflow, gpu=gpu)) as folder:
        wheel = None if force else kept_wheel(tensorflow, gpu=gpu)
        if wheel is not None:
            _install(wheel)
            if _self_test() is None:
                return f"installed Horovod {HOROVOD} for TensorFlow {tensorflow} from {wheel}"
            _say(f"the kept wheel does not run here, compiling again: {wheel}")
        started = time.monotonic()
        wheel = _compile(folder, tensorflow, gpu=gpu)
        _install(wheel)
        failure = _self_test()
        if failure is not None:
            wheel.unlink()
            raise BuildError(f"Horovod compiled but does not run with TensorFlow {tensorflow}:\n{failure}")
        return f"compiled Horovod {HOROVOD} in {time.monotonic() - started:.0f} s; kept as {wheel}"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Compile Horovod for this environment's TensorFlow.")
    parser.add_argument("--gpu", action="store_true", help="allreduce on GPUs with NCCL")
    parser.add_argument("--force", action="store_true", help="compile even if a fitting Horovod is installed or kept")
    args = parser.parse_args(argv)
    # Without this a terminated build would leave its compiler running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        _say(ensure(gpu=args.gpu, force=args.force))
    except LakelensError as error:
        _say(f"error: {error}")
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        _say("interrupted; the next call starts the compilation again")
        return 130
    return 0


def check_tools(environ: Mapping[str, str] = os.environ) -> None:
    """Checks that what the compilation needs is on PATH, before anything is downloaded."""
    missing = []
    for programs, hint in _PROGRAMS.items():
        chosen = environ.get("CXX", "").split()[:1] if "g++" in programs else []
        if not any(shutil.which(program, path=environ.get("PATH", os.defpath)) for program in chosen or programs):
            missing.append(hint.format(f" (CXX={chosen[0]} does not exist)" if chosen else ""))
    if missing:
        raise MissingDependencyError("Horovod has to be compiled on this machine, and " + "; ".join(missing))


def _compile(folder: Path, tensorflow: str, *, gpu: bool) -> Path:
    """Compiles a wheel into a folder, next to the log of the compilation."""
    check_tools()
    log = folder / "build.log"
    with tempfile.TemporaryDirectory(prefix="lakelens-horovod-") as scratch:
        workspace = Path(scratch)
        environment = _build_environment(workspace, gpu=gpu)
        _say(f"compiling Horovod {HOROVOD} for TensorFlow {tensorflow}: about 3 minutes on 2 cores; log: {log}")
        log.write_text("", encoding="utf-8")
        _pip(["install", "--target", str(workspace / "tools"), *_BUILD_TOOLS], _pip_environment(), log)
        # pip keeps what it builds by its source alone: its cache would hand out a wheel for another TensorFlow.
        options = ["--no-deps", "--no-build-isolation", "--no-cache-dir"]
        source = ["--no-binary", "horovod", "--dest", scratch, f"horovod=={HOROVOD}"]
        _pip(["download", *options, *source], environment, log)
        shutil.unpack_archive(next(workspace.glob("horovod-*.tar.gz")), workspace)
        unpacked = workspace / f"horovod-{HOROVOD}"
        horovod_patch.apply(unpacked)
        _pip(["wheel", "--verbose", *options, "--wheel-dir", scratch, str(unpacked)], environment, log)
        built = next(workspace.glob("horovod-*.whl"))
        if not _is_for(built, tensorflow):
            raise BuildError(f"{built.name} has no library for TensorFlow {tensorflow}; the log: {log}")
        # Renamed into place: an interrupt leaves no half of a wheel under its name.
        arriving = shutil.copyfile(built, folder / "arriving")
        return arriving.rename(folder / built.name)


def _build_environment(workspace: Path, *, gpu: bool) -> dict[str, str]:
    """Derives the compiler's environment, with separate build tools in the workspace."""
    environment, tools = _pip_environment(), workspace / "tools"
    environment |= {
        "PYTHONPATH": str(tools),
        "PATH": f"{tools / 'bin'}{os.pathsep}{environment.get('PATH', os.defpath)}",
        "HOROVOD_CMAKE": str(tools / "bin" / "cmake"),
        "HOROVOD_WITH_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_MPI": "1",
        "CXXFLAGS": f"{_HEADERS} {environment.get('CXXFLAGS', '')}".strip(),
        # Below make this variable is set already, and Horovod would then compile one file at a time.
        "MAKEFLAGS": f"-j{os.cpu_count() or 2}",
    }
    if gpu:
        environment["HOROVOD_GPU_OPERATIONS"] = "NCCL"
    return environment


def _pip_environment() -> dict[str, str]:
    """Derives an environment in which pip installs into this interpreter and nowhere else."""
    kept = {name: value for name, value in os.environ.items() if name not in _DROPPED}
    return kept | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONUNBUFFERED": "1"}


def _pip(arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
    """Runs pip for this interpreter with its output at the end of a log; an interrupt ends it with its compilers."""
    command = [sys.executable, "-m", "pip", *arguments]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        code = process.wait()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code != 0:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [line for line in lines if re.search(r"\berror\b[: ]", line, re.IGNORECASE)][:5]
        shown = "\n".join([*errors, "...", *lines[-25:]])
        raise BuildError(f"pip {arguments[0]} ended with {code}. The whole log: {log}\n{shown}")


def _is_for(wheel: Path, tensorflow: str) -> bool:
    """Returns whether a wheel is whole and was compiled against a version of TensorFlow."""
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
            f"the folder of compiled wheels {folder} cannot be written ({error.strerror}); "
            "set XDG_CACHE_HOME to a folder that can"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"waiting for another process that compiles {key}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def _install(wheel: Path) -> None:
    arguments = ["install", "--no-deps", "--no-index", "--force-reinstall", str(wheel)]
    _pip(arguments, _pip_environment(), wheel.with_name("build.log"))


def _self_test() -> str | None:
    """Runs `horovod_self_test` in its own process; None when it is right, else what it wrote."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
    environment |= {"TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, "-m", "lakelens.horovod_self_test"]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_SELF_TEST_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"its self test did not end within {_SELF_TEST_S} s"
    if done.returncode == 0:
        return None
    return "\n".join(done.stderr.strip().splitlines()[-25:]) or f"it ended with {done.returncode}"


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
