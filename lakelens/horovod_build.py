"""Compiles Horovod against the TensorFlow of the running environment and keeps the wheel for the next one.

    python -m lakelens.horovod_build            # CPU
    python -m lakelens.horovod_build --gpu      # NCCL; needs CUDA's and NCCL's headers
    python -m lakelens.horovod_build --wheel-dir /Volumes/main/lakelens/files/wheels   # machines share the wheel

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
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from . import horovod_patch
from .errors import BuildError, LakelensError, MissingDependencyError, UsageError
from .horovod_compile import HOROVOD, check_imported, compile_wheel, pip_environment, run_pip, wheel_is_for
from .logged import last_lines, say

TENSORFLOW_NAMES = ("tensorflow", "tensorflow-cpu", "tensorflow-macos", "tensorflow-cpu-aws")
COMMAND = "python -m lakelens.horovod_build"
_SELF_TEST_S = 300


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
    """Describes what is wrong with the installed Horovod and how to fix it, from files alone; None when it is usable.

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


def kept_wheel(tensorflow: str, *, gpu: bool = False, root: Path | None = None) -> Path | None:
    """Finds the kept wheel for `tensorflow` and this interpreter; None when it has to be compiled."""
    for wheel in sorted(((root or cache_root()) / wheel_key(tensorflow, gpu=gpu)).glob("horovod-*.whl")):
        if wheel_is_for(wheel, tensorflow):
            return wheel
    return None


def ensure(*, gpu: bool = False, force: bool = False, wheel_dir: Path | None = None) -> str:
    """Makes the running environment's Horovod fit its TensorFlow, from the cache or by compiling."""
    tensorflow = tensorflow_version()
    if tensorflow is None:
        raise MissingDependencyError("TensorFlow has to be installed before Horovod: pip install 'lakelens[training]'")
    if importlib.util.find_spec("pip") is None:
        raise MissingDependencyError(f"{sys.executable} has no pip; {sys.executable} -m ensurepip brings it")
    check_imported()
    if not force and not gpu and problem() is None and is_changed() and _self_test() is None:
        return f"Horovod {HOROVOD} for TensorFlow {tensorflow} is there"
    key = wheel_key(tensorflow, gpu=gpu)
    with _locked(key) as folder:
        wheel = None if force else kept_wheel(tensorflow, gpu=gpu, root=wheel_dir)
        if wheel is not None:
            _install(wheel)
            if _self_test() is None:
                return f"installed Horovod {HOROVOD} for TensorFlow {tensorflow} from {wheel}"
            say(f"the kept wheel does not run here, compiling again: {wheel}")
        started = time.monotonic()
        # The lock and the log stay on this machine: a mounted volume may have neither locks nor appending.
        log = folder / "build.log"
        wheel = compile_wheel(_made(folder if wheel_dir is None else wheel_dir / key), log, tensorflow, gpu=gpu)
        _install(wheel)
        failure = _self_test()
        if failure is not None:
            wheel.unlink(missing_ok=True)  # another machine may have removed it from a shared folder
            raise BuildError(f"Horovod compiled but does not run with TensorFlow {tensorflow}:\n{failure}\nLog: {log}")
        seconds = time.monotonic() - started
        return f"compiled Horovod {HOROVOD} for TensorFlow {tensorflow} in {seconds:.0f} s; kept as {wheel}"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Compile Horovod for this environment's TensorFlow.")
    parser.add_argument("--gpu", action="store_true", help="allreduce on GPUs with NCCL")
    parser.add_argument("--force", action="store_true", help="compile even if a fitting Horovod is installed or kept")
    parser.add_argument("--wheel-dir", type=Path, metavar="FOLDER", help="folder of wheels that machines share")
    args = parser.parse_args(argv)
    # Without this a terminated build would leave its compiler running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        say(ensure(gpu=args.gpu, force=args.force, wheel_dir=args.wheel_dir))
    except LakelensError as error:
        say(f"error: {error}")
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        say("interrupted; the next call starts the compilation again")
        return 130
    return 0


@contextlib.contextmanager
def _locked(key: str) -> Iterator[Path]:
    """Yields the key's folder of the cache while no other process builds for the same key."""
    folder = _made(cache_root() / key)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that compiles {key}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def _made(folder: Path) -> Path:
    """Makes a folder of wheels and checks that files can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "lock").touch()
    except OSError as error:
        raise MissingDependencyError(
            f"the folder of compiled wheels {folder} cannot be written ({error.strerror}); "
            "set XDG_CACHE_HOME, or --wheel-dir, to a folder that can"
        ) from error
    return folder


def _install(wheel: Path) -> None:
    run_pip(
        ["install", "--quiet", "--no-deps", "--no-index", "--force-reinstall", str(wheel)],
        pip_environment(),
        f"{wheel} could not be installed",
    )


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
    return last_lines(done.stderr) or f"it ended with {done.returncode}"


if __name__ == "__main__":
    sys.exit(main())
