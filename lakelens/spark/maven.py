"""The JARs that a Spark session fetches from Maven: which one is Delta, and one session fetching at a time.

Spark fetches with Ivy, whose cache is not made for several processes: of two sessions that fetch the same package at
the same time, which they do where none has run before, one does not find what the other is writing and fails with
"unresolved dependency".
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import pwd
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..errors import MissingDependencyError

logger = logging.getLogger(__name__)


def delta_package() -> str:
    """Names the Maven artifact of Delta that belongs to the installed delta-spark, as `group:artifact:version`.

    Raises:
        MissingDependencyError: If delta-spark is missing.
    """
    import pyspark

    scala = "2.13" if pyspark.__version__.startswith("4.") else "2.12"
    try:
        return f"io.delta:delta-spark_{scala}:{version('delta-spark')}"
    except PackageNotFoundError as error:
        raise MissingDependencyError("delta-spark is missing; pip install 'lakelens[spark]'") from error


@contextlib.contextmanager
def fetching(packages: Sequence[str], ivy_folder: str | None = None) -> Iterator[None]:
    """Holds Ivy's folder while its body starts a JVM that may fetch packages; waits for another that does.

    Where the packages lie in the folder already nothing is held, so that sessions start side by side.

    Args:
        packages: Maven artifacts, as `group:artifact:version`.
        ivy_folder: The setting `spark.jars.ivy`; None is Spark's own, `.ivy2` in the user's home.
    """
    folder = Path(ivy_folder) if ivy_folder else _default_folder()
    with contextlib.ExitStack() as held:
        if not _fetched(packages, folder):
            held.enter_context(_locked(folder))
            if _fetched(packages, folder):  # by the one that was waited for
                held.close()
        yield


def _fetched(packages: Sequence[str], folder: Path) -> bool:
    return all((folder / "jars" / _jar(package)).is_file() for package in packages)


def _jar(package: str) -> str:
    """The name that Spark gives a package's JAR in Ivy's folder once all that it needs is in Ivy's cache."""
    group, artifact, number = (*package.replace("/", ":").split(":"), "", "")[:3]
    return f"{group}_{artifact}-{number}.jar"


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Locks the folder itself, so that no file is left over; goes on where the file system locks nothing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # Ivy says what is wrong with it
        yield
        return
    try:
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                logger.warning("waiting for another session that fetches packages into %s", folder)
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _default_folder() -> Path:
    import pyspark

    try:
        home = pwd.getpwuid(os.getuid()).pw_dir  # what Java calls user.home; HOME may be another
    except KeyError:
        home = str(Path.home())
    return Path(home) / (".ivy2.5.2" if pyspark.__version__.startswith("4.") else ".ivy2")
