"""What of an ingest can be checked on this machine's disk, before a JVM starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ...errors import NotADeltaTableError, SourceNotFoundError, TableError
from ...locations import absolute, absolute_path, has_scheme, is_table_name
from ..files.class_folders import Wanted, list_top
from ..images.recipe import Recipe
from ..log.snapshot import identify
from ..sources.annotated import MANIFEST
from .results import IngestRequest


def check_without_spark(location: str, request: IngestRequest) -> None:
    """Checks source and table of an ingest whose executors see the same files as this process.

    Object stores, and names of the catalog, are left to Spark.

    Raises:
        SourceNotFoundError: If the source does not exist.
        EmptySourceError: If it has no class folder and the layout wants some.
        NotADeltaTableError: If something else is where the table is to be.
        InvalidArgumentError: If the table was made by another recipe.
    """
    request.check()
    source = request.source
    for file in (source.annotations, source.location if source.layout == MANIFEST else None):
        place = None if file is None else absolute_path(str(file))
        if place is not None and not has_scheme(place) and not Path(place).exists():
            raise SourceNotFoundError(f"{place} does not exist; give the path of an existing file")
    folder = absolute_path(str(source.location))
    if source.layout != MANIFEST and not has_scheme(folder):
        list_top(os.fsencode(folder)).check(folder, Wanted(source.layout))
    table = absolute(location)
    if is_table_name(table) or has_scheme(table):
        return
    check_place(table)
    if (configuration := _configuration(table)) is not None:
        recipe = Recipe.of(configuration, table)
        recipe.check_unchanged(recipe.with_changes(**request.recipe_changes), table)


def check_place(location: str) -> None:
    """Checks that a table may be made, or is, at a place.

    Raises:
        NotADeltaTableError: If something else is there.
    """
    path = Path(absolute(location))
    is_taken = "://" not in location and path.exists() and (not path.is_dir() or any(path.iterdir()))
    # A log without a version is what a first ingest leaves that died before its commit; its files are in nobody's way.
    if is_taken and not (path / "_delta_log").is_dir():
        raise NotADeltaTableError(
            f"{location} exists and is no Delta table; ingest into a path that does not exist yet, or an image table"
        )


def _configuration(table: str) -> Mapping[str, str] | None:
    """Reads the table's properties; None where there is no table yet, or one that delta-rs does not open."""
    if not (Path(table) / "_delta_log").is_dir():
        return None
    try:
        return identify(table).configuration
    except TableError:
        return None
