"""The search for a Python: candidates are run, not believed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

# The search's own check, on this interpreter, which tells it another version or lacks a module.
OTHER_VERSION = "import sys; sys.version_info = ({version}, 0, 'final', 0); exec(sys.argv[1])"
WITHOUT_VENV = "import sys; sys.modules['ensurepip'] = None; exec(sys.argv[1])"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder for PATH with the few programs that the search itself calls, and no Python."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "env", "sed", "cat"):
        path = next(Path(folder) / name for folder in ("/usr/bin", "/bin") if (Path(folder) / name).exists())
        (programs / name).symlink_to(path)
    return programs


def put(path: Path, code: str | None = None) -> None:
    """Puts a Python at `path`: this interpreter, or this interpreter altered by `code`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if code is None:
        path.symlink_to(sys.executable)
        return
    path.write_text(f'#!/bin/sh\nshift\nexec "{sys.executable}" -c "{code}" "$@"\n', encoding="utf-8")
    path.chmod(0o755)


def put_broken_shim(path: Path) -> None:
    path.write_text('#!/bin/sh\necho "pyenv: python3.10: command not found" >&2\nexit 127\n', encoding="utf-8")
    path.chmod(0o755)


@pytest.fixture
def find(machine: Path, checkout: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the search on that machine."""

    def run(**variables: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": str(machine),
            "HOME": str(tmp_path / "home"),
            "FIND_PYTHON_ROOT": str(tmp_path / "system"),
        } | variables
        command = ["/bin/sh", str(checkout / ".ci" / "find-python")]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    return run


def test_python3_is_taken_when_its_version_fits(machine: Path, find: Callable) -> None:
    put(machine / "python3")
    assert (
        find().stdout.strip() == sys.executable
        or Path(find().stdout.strip()).resolve() == Path(sys.executable).resolve()
    )


def test_a_newer_python3_is_passed_over(machine: Path, find: Callable) -> None:
    put(machine / "python3", OTHER_VERSION.format(version="3, 14"))
    put(machine / "python3.12")
    found = find()
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.strip()


def test_a_shim_with_no_python_behind_it_is_passed_over(machine: Path, find: Callable, tmp_path: Path) -> None:
    put_broken_shim(machine / "python3.10")
    put(tmp_path / "home" / ".pyenv" / "versions" / "3.11.7" / "bin" / "python3")
    assert find().returncode == 0


@pytest.mark.parametrize(
    "place",
    [
        "home/.pyenv/versions/3.12.1/bin/python3",
        "home/.local/share/uv/python/cpython-3.10.13-linux-x86_64-gnu/bin/python3",
        "system/usr/bin/python3.11",
        "system/opt/homebrew/bin/python3.12",
    ],
)
def test_a_python_that_is_not_on_path_is_found(find: Callable, tmp_path: Path, place: str) -> None:
    put(tmp_path / place)
    assert find().returncode == 0


def test_without_a_python_the_packages_that_bring_one_are_named(machine: Path, find: Callable) -> None:
    put(machine / "python3", OTHER_VERSION.format(version="3, 14"))
    found = find()
    assert (found.returncode, found.stdout) == (2, "")
    for text in (
        "3.14.0 is not 3.10 or 3.11 or 3.12 or 3.13",
        "apt-get install python3",
        "dnf install",
        "brew install",
        "make PYTHON=",
    ):
        assert text in found.stderr


def test_a_python_without_venv_is_named_with_the_package_that_brings_it(machine: Path, find: Callable) -> None:
    put(machine / "python3", WITHOUT_VENV)
    found = find()
    assert found.returncode == 2
    assert "lacks the venv module" in found.stderr
    assert "python3-venv" in found.stderr


def test_a_named_python_is_the_only_candidate(machine: Path, find: Callable, tmp_path: Path) -> None:
    put(machine / "python3")
    put(tmp_path / "mine" / "python", OTHER_VERSION.format(version="3, 9"))
    refused = find(PYTHON=str(tmp_path / "mine" / "python"))
    assert refused.returncode == 2
    assert "3.9.0 is not 3.10 or 3.11" in refused.stderr
    missing = find(PYTHON="no-such-python")
    assert (missing.returncode, "no such program" in missing.stderr) == (2, True)
    assert find(PYTHON=os.fspath(machine / "python3")).returncode == 0


def test_a_stack_takes_only_the_pythons_that_it_is_for(machine: Path, find: Callable) -> None:
    put(machine / "python3", OTHER_VERSION.format(version="3, 10"))
    put(machine / "python3.13", OTHER_VERSION.format(version="3, 13"))
    assert find(FIND_PYTHON_VERSIONS="3.12 3.13").returncode == 0
    refused = find(FIND_PYTHON_VERSIONS="3.11 3.12")
    assert refused.returncode == 2
    assert "lakelens needs Python 3.11 or 3.12" in refused.stderr


def test_the_first_version_of_a_stack_comes_before_python3(machine: Path, find: Callable) -> None:
    named = "import sys; sys.version_info = ({0}, 0, 'final', 0); sys.executable = '{0}'; exec(sys.argv[1])"
    put(machine / "python3", named.format("3, 13"))
    put(machine / "python3.12", named.format("3, 12"))
    assert find(FIND_PYTHON_VERSIONS="3.12 3.13").stdout == "3, 12\n"
    assert find().stdout == "3, 13\n"
