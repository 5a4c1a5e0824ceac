"""Whether this process reaches a table's place without Spark: every commit is looked up there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import InvalidArgumentError, NotADeltaTableError, StoreError
from ...locations import absolute_path, has_scheme
from ...log.opening import open_table, uri_for_delta_rs
from ...stores.clients import require_known_store
from ...stores.data_files import local_form
from ...stores.delta_uris import unwritable_part
from ...table import Table
from ..spark.catalog import path_of, place_of_new, place_to_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def require_reachable(spark: SparkSession, table: Table, *, exists: bool) -> None:
    """Checks that delta-rs can open and write what Spark is about to write, before anything is written."""
    location = path_of(spark, table.location) if exists or not table.is_name else place_of_new(spark, table.location)
    found = Table(absolute_path(location).rstrip("/") or "/", table.storage_options)
    require_writable(found)
    if not has_scheme(found.path):
        seen = place_to_spark(spark, found.path)
        if not is_same_place(found.path, seen):
            raise InvalidArgumentError(
                f"{table}: Spark takes this path for {seen}, and lakelens reads a table's log without Spark: it would "
                "take the path for a folder of this machine. Give the URI of a store that it reads, or file:/..."
            )
    try:
        open_table(found)
    except NotADeltaTableError:
        if exists:
            raise
    except StoreError as error:
        raise StoreError(
            f"{table}: lakelens reads a table's log without Spark, and only Spark reaches this place so far; tables "
            f"that the catalog manages, and keys in Hadoop's configuration, are for Spark alone. {error}"
        ) from error


def require_writable(table: Table) -> None:
    """Checks a path or URI by its letters alone."""
    location = table.path
    uri_for_delta_rs(table)
    if local_form(location) is None:
        require_known_store(location)
    # They end the path in a URI; no ingest has been tried there.
    part = unwritable_part(location) or next((letter for letter in "?#" if letter in location), None)
    if part is not None:
        raise InvalidArgumentError(
            f"{location}: no image table can be kept in a folder with {part!r} in its path; choose a folder without it"
        )


def is_same_place(path: str, seen: str | None) -> bool:
    """Whether a path of this machine is what Spark takes it for."""
    return seen is None or seen.startswith("file:") or local_form(seen) == path
