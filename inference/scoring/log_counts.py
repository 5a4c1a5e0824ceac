"""What the Delta log alone says of rows: how many a scoring has left, and how large the images of a table are.

Every row that a scoring adds has a `batch_id` that starts with the scoring's mark. The log's statistics hold the first
32 characters of texts, which a `batch_id` has, so that the files of a scoring are known without opening one.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ...errors import LakelensError, UnsupportedTableFeatureError
from ...etl.log.opening import log_of, open_log
from ...etl.log.snapshot import locate
from ...etl.model import schema
from ...stores.parquet import open_parquet_file
from ..model.failures import is_transient

if TYPE_CHECKING:
    from deltalake import DeltaTable

_MARK, _BATCH = 20, 32
# Files with errors that are opened to see which; of more, Spark reads them faster.
_MOST_OPENED = 32


@dataclass(frozen=True)
class LoggedRows:
    """Rows of one scoring.

    Attributes:
        rows: How many.
        by_split: How many are in files of one split each, by split.
        has_transient: Whether there are errors that may have passed, so that their rows are worth another try; True
            also where that would take too long to tell.
    """

    rows: int
    by_split: Mapping[str, int]
    has_transient: bool


def mark_of(digest: str, table: str, table_id: str, version: int) -> str:
    """Makes the mark of a model's scoring of one version of a table."""
    return hashlib.sha256(f"{digest}\n{table}\n{table_id}\n{version}".encode()).hexdigest()[:_MARK]


def new_batch_id(mark: str) -> str:
    """Makes a `batch_id` with a mark."""
    return mark + uuid.uuid4().hex[: _BATCH - _MARK]


def logged_rows(
    table: DeltaTable, mark: str, location: str, storage_options: Mapping[str, str] | None
) -> LoggedRows | None:
    """Counts the rows of the scoring with `mark` in an open predictions table; None where the log does not tell.

    Args:
        table: The table, without deletion vectors.
        mark: What `mark_of` gives.
        location: Where the table is.
        storage_options: Access to an object store.
    """
    actions = table.get_add_actions(flatten=True)
    needed = ("path", "num_records", "min.batch_id", "max.batch_id", "null_count.prediction")
    if not set(needed) <= set(actions.schema.names):
        return None
    columns = {name: actions.column(name).to_pylist() for name in needed}
    splits = [_column(actions, f"{end}.split", len(actions)) for end in ("min", "max")]
    rows, by_split, with_errors = 0, Counter[str](), []
    for i, (path, count, first, last, errors) in enumerate(zip(*columns.values(), strict=True)):
        # Another writer's files may hold rows of several batches.
        if first is None or last is None or not (first.startswith(mark) and last.startswith(mark)):
            continue
        if count is None:
            return None
        rows += count
        if splits[0][i] is not None and splits[0][i] == splits[1][i]:
            by_split[splits[0][i]] += count
        if errors != 0:
            with_errors.append(locate(location, unquote(path)))
    has_transient = len(with_errors) > _MOST_OPENED or any(
        _has_transient(file, storage_options) for file in with_errors
    )
    return LoggedRows(rows, by_split, has_transient)


def image_size(location: str, version: int, storage_options: Mapping[str, str] | None = None) -> tuple[int, int] | None:
    """Gives height and width of the images of a table's version, if all have one size and the log says it."""
    try:
        with log_of(location) as log:
            actions = open_log(location, log, version, storage_options).get_add_actions(flatten=True)
    except UnsupportedTableFeatureError:
        return None
    sizes = []
    for name in (schema.HEIGHT, schema.WIDTH):
        found = {value for end in ("min", "max") for value in _column(actions, f"{end}.{name}", len(actions))}
        if len(found) != 1 or None in found:
            return None
        sizes.append(int(found.pop()))
    return sizes[0], sizes[1]


def _column(actions: Any, name: str, length: int) -> list[Any]:
    values: list[Any] = actions.column(name).to_pylist() if name in actions.schema.names else [None] * length
    return values


def _has_transient(file: str, storage_options: Mapping[str, str] | None) -> bool:
    try:
        with open_parquet_file(file, storage_options) as parquet:
            errors = parquet.read(columns=["error"]).column("error").drop_null().unique().to_pylist()
    except (OSError, LakelensError):  # Spark may have an access that this process has not
        return True
    return any(is_transient(error) for error in errors)
