"""The pages of commands are those of the parsers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lakelens.jobs.reference import COMMAND, commands, machine_readable, markdown

pytestmark = pytest.mark.unit

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_pages_have_the_commands_and_flags_that_there_are() -> None:
    described = commands()
    for name, text in (("commands.json", machine_readable(described)), ("commands.md", markdown(described))):
        assert (DOCS / name).read_text(encoding="utf-8") == text, f"the flags have changed; run {COMMAND}"
    by_name = {one["command"]: one for one in json.loads((DOCS / "commands.json").read_text(encoding="utf-8"))}
    etl = {argument["name"]: argument for argument in by_name["lakelens etl"]["arguments"]}
    assert (etl["source"]["required"], etl["--class NAME"]["repeatable"]) == (True, True)
    assert etl["--removed REMOVED"]["default"] == "keep"
    assert {"lakelens table vacuum", "lakelens models promote", "lakelens experiments pause"} <= set(by_name)
