"""What migrants see in a terminal is what the page shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "migration" / "transcript.md"


def without_numbers_and_ids(text: str) -> list[str]:
    text = re.sub(r"\b[0-9a-f]{4}\.\.\.|(?<=-)[0-9a-f]{12}\b", "ID", text)
    text = re.sub(r"(\d+ min )?\d[\d.,]*", "0", text)  # a slow machine takes minutes
    return [line for line in text.splitlines() if " waits for " not in line]


@pytest.mark.system
@pytest.mark.long
@pytest.mark.spark
@pytest.mark.horovod
@pytest.mark.timeout(1500)
def test_the_commands_of_the_page_print_what_it_shows(tmp_path: Path) -> None:
    written = tmp_path / "transcript.md"
    subprocess.run([sys.executable, str(ROOT / ".ci" / "transcript.py"), str(written)], check=True, timeout=1400)
    assert without_numbers_and_ids(written.read_text("utf-8")) == without_numbers_and_ids(PAGE.read_text("utf-8"))
