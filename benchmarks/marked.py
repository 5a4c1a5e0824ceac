"""Pages of which a part is written by a program: what lies between two marks."""

from __future__ import annotations

from pathlib import Path


def write_between(path: Path, begin: str, end: str, text: str) -> None:
    """Replaces what lies between two marks of a page; the marks stay."""
    page = path.read_text(encoding="utf-8")
    head, found_begin, rest = page.partition(begin)
    _, found_end, tail = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"{path}: lacks {begin!r} or {end!r}, between which the text goes")
    path.write_text(f"{head}{begin}\n{text}\n{end}{tail}", encoding="utf-8")
