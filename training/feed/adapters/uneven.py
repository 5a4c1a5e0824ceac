"""Which columns of arrays have no tensor form, because their arrays differ in length or have nulls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing

import numpy as np

from ..plan.feed_plan import FeedPlan, naming_file
from ..reading.row_groups import FileLayout, OpenRowGroup

# Rows at the begin of so many files are looked at: reading all arrays would cost as much as an epoch.
_FILES = 4
_ROWS = 1024


def arrays_of(plan: FeedPlan, columns: Sequence[str]) -> list[str]:
    """Lists those of some columns that hold arrays of simple values."""
    kinds = {name: json.loads(plan.schema[name]) for name in columns if plan.schema[name].startswith("{")}
    return [name for name, kind in kinds.items() if isinstance(kind.get("elementType"), str)]


def uneven_columns(plan: FeedPlan, columns: Sequence[str]) -> set[str]:
    """Finds columns of arrays that differ in length or have nulls, among the first rows of some files."""
    arrays, shapes = arrays_of(plan, columns), dict[str, set[int | None]]()
    with_rows = np.flatnonzero(plan.files.rows).tolist() if arrays else []
    for file in with_rows[:: max(1, len(with_rows) // _FILES)][:_FILES]:
        with naming_file(plan, file):
            layout = FileLayout.of(plan, file)
            row_group = next(number for number, rows in enumerate(layout.rows) if rows)
            with closing(OpenRowGroup(plan, file, layout, row_group, arrays)) as stored:
                group = stored.read(0, min(_ROWS, stored.rows))
                kept = None if layout.kept is None else layout.kept[row_group][: len(group.table)]
                for name in arrays:
                    values = group.values(name)
                    rows = range(len(values)) if kept is None else [row for row in kept.tolist() if row < len(values)]
                    shapes.setdefault(name, set()).update(length_of(values[row]) for row in rows)
    return {name for name, found in shapes.items() if len(found) > 1 or None in found}


def length_of(value: Sequence[object] | None) -> int | None:
    """Gives the length of an array; None for null, and for an array with a null."""
    return None if value is None or None in value else len(value)
