"""The page about errors has every class with its own sentence, and only messages that the code gives."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from lakelens import errors

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
# Bases that nothing raises by themselves.
BASES = (errors.LakelensError, errors.UsageError)


def raised_classes() -> list[type[BaseException]]:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    return [kind for kind in kinds if issubclass(kind, (errors.LakelensError, KeyboardInterrupt)) and kind not in BASES]


def messages_of_the_code() -> list[str]:
    """Every text of the package as one piece, its values as `…`."""
    found = []
    for folder in ("lakelens", "etl", "training", "search", "inference"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
                    found.append("".join(map(str, parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return found


def test_every_error_has_a_section_with_the_sentence_of_its_class_and_its_exit_code() -> None:
    for kind in raised_classes():
        code = 2 if issubclass(kind, errors.UsageError) else 130 if issubclass(kind, KeyboardInterrupt) else 1
        sentence = (inspect.getdoc(kind) or "").splitlines()[0]
        assert f"\n### {kind.__name__}\n\n{sentence} Exit code {code}.\n" in PAGE


def test_every_message_on_the_page_is_one_that_the_code_gives() -> None:
    texts = messages_of_the_code()
    shown = re.findall(r"^- `([^`]+)`: ", PAGE, re.MULTILINE)
    assert len(shown) > 60
    pieces = {one: [piece.strip() for piece in one.split("…")] for one in shown}
    assert [one for one in shown if not any(all(piece in text for piece in pieces[one]) for text in texts)] == []
