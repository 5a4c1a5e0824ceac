"""What was wrong with the annotation of an image."""

from __future__ import annotations

from typing import Any


def reasons(annotation: Any) -> list[str]:
    """The reasons of a record's problems, or of a row's."""
    return [found.reason for found in annotation.problems]
