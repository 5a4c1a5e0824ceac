"""Which long tests a commit runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system


def test_the_shares_of_the_long_tests_are_disjoint_and_together_all_of_them(checkout: Path) -> None:
    def collected(*arguments: str) -> list[str]:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "-p", "no:cacheprovider"]
        command += ["-m", "long", *arguments, "tests/packaging"]
        told = subprocess.run(command, cwd=checkout, stdout=subprocess.PIPE, text=True, check=True)
        return [line for line in told.stdout.splitlines() if "::" in line]

    shares = [collected("--long-share", f"{share}/2") for share in range(2)]
    assert all(shares)
    assert sorted(name for share in shares for name in share) == sorted(collected())
