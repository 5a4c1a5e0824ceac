"""The keys of the results of commands, as docs/commands.md lists them."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "commands.md"
_ROW = re.compile(r"^\| `([^|]+?)`(?: with `([^`]+)`)? \| (`.+`) \|$", re.MULTILINE)


def result_keys() -> dict[tuple[str, str], list[str]]:
    """Reads the table: keys by command and form, which is "" for the usual one."""
    table = PAGE.read_text(encoding="utf-8").partition("## Keys of the results")[2].partition("\n<!--")[0]
    return {
        (name, form): keys.strip("`").split("`, `")
        for names, form, keys in _ROW.findall(table)
        for name in names.split("`, `")
    }
