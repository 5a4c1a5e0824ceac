"""The notes that lakelens writes with its commits, for the history: what was done, by whom, from which source."""

from __future__ import annotations

import json
from typing import Any

from ..annotations.record import encodable

INGEST, RESTORE, REPAIR = "ingest", "restore", "repair"
DELETE, RENAME, OPTIMIZE = "delete", "rename", "optimize"
_KINDS = (INGEST, RESTORE, REPAIR, DELETE, RENAME, OPTIMIZE)
# Commits of these leave every row as it was.
SAME_ROWS = frozenset({"OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES", "UNSET TBLPROPERTIES"})


def write_note(kind: str, **others: Any) -> str:
    """Writes the note of a commit."""
    texts = {name: encodable(value) if isinstance(value, str) else value for name, value in others.items()}
    return json.dumps({"lakelens": kind, **texts}, ensure_ascii=False)


def note_of(text: object) -> dict[str, Any]:
    """Reads the note of a commit; empty for other writers' words."""
    try:
        note = json.loads(str(text))
    except ValueError:
        return {}
    return note if isinstance(note, dict) and note.get("lakelens") in _KINDS else {}
