"""Which long tests a commit runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system


def test_a_share_of_the_long_tests_is_every_nth_by_name(checkout: Path) -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "-p", "no:cacheprovider"]
    command += ["-m", "long", "--long-share", "1/2", "tests/packaging/test_pythons.py"]
    told = subprocess.run(command, cwd=checkout, stdout=subprocess.PIPE, text=True, check=True)
    named = [line.partition("[")[2] for line in told.stdout.splitlines() if "::" in line]
    assert named == ["12]"]  # of 10, 12 and 13
