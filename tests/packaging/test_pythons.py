"""The wheel on every Python that it is for, where one is installed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from borrowed import TABLE, clean_environment
from child_processes import run_to_end

pytestmark = [pytest.mark.system, pytest.mark.long]

CODE = (
    TABLE
    + """
print(next(lakelens.DeltaFeed("table").as_numpy(4))[0].shape, lakelens.HorovodRunner(np=-1).run(int))
"""
)


def find_python(checkout: Path, minor: int) -> str | None:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHON"}
    command = [str(checkout / ".ci" / "find-python")]
    environment = variables | {"FIND_PYTHON_VERSIONS": f"3.{minor}"}
    done = run_to_end(command, None, env=environment)
    return done.stdout.strip() if done.returncode == 0 else None


def exact(checkout: Path, minor: int) -> list[str]:
    """The newest stack that is for this Python; none is for 3.10, whose packages are the newest that pip finds."""
    for lock in sorted((checkout / "constraints").glob("*.txt"), reverse=True):
        if f" 3.{minor}" in lock.read_text(encoding="utf-8").splitlines()[1]:
            return ["--constraint", str(lock)]
    return []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("minor", [10, 12, 13])
def test_the_wheel_installs_and_feeds_on_other_pythons(wheel, checkout, tmp_path, minor):
    python = find_python(checkout, minor)
    if python is None or sys.version_info[:2] == (3, minor):
        pytest.skip(f"there is no other Python 3.{minor} on this machine")
    environment = tmp_path / "environment"
    run_to_end([python, "-m", "venv", str(environment)])
    install = ["-m", "pip", "install", "--quiet", *exact(checkout, minor), str(wheel)]
    inside = str(environment / "bin" / "python")
    for command in ([inside, *install], [inside, "-m", "pip", "check"], [inside, "-c", CODE]):
        done = run_to_end(command, cwd=tmp_path, env=clean_environment())
    assert done.stdout.split("\n")[0] == "(4, 16, 16, 3) 0"
