"""What of an ingest can be checked on this machine's disk, before a JVM starts."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from ...errors import InvalidArgumentError, NotADeltaTableError, SourceNotFoundError, TableError
from ...ledger.store import read
from ...locations import absolute, absolute_path, has_scheme, is_table_name
from ...log.opening import open_table
from ...options import suggestion
from ...table import Table
from ..annotations.manifest import manifest_format
from ..files import CLASS_FOLDERS, FOLDER_LAYOUTS, MANIFEST, Wanted, check_class_folder, list_top
from ..images.recipe import Recipe
from .results import IngestRequest


def check_without_spark(location: str, request: IngestRequest) -> None:
    """Checks source and table of an ingest whose executors see the same files; skips stores and catalog names."""
    source = request.source
    is_text = source.layout == MANIFEST and manifest_format(str(source.location)) != "parquet"
    for file in (source.annotations, source.location if source.layout == MANIFEST else None):
        path = None if file is None else absolute_path(str(file))
        if path is not None and not has_scheme(path) and not Path(path).exists():
            raise SourceNotFoundError(f"{path} does not exist; give the path of an existing file")
        if is_text and path is not None and Path(path).is_dir():
            raise SourceNotFoundError(f"{path} is a folder; layout {MANIFEST!r} wants a file")
    folder, top = source.folder, None
    if source.layout != MANIFEST and not has_scheme(folder):
        top = list_top(os.fsencode(folder))
        top.check(folder, Wanted(source.layout, keep_names=True))
        if not request.delete_missing:
            check_class_folder(folder, top, Wanted(source.layout))
    table = absolute(location)
    if is_table_name(table) or has_scheme(table):
        return
    check_place(table)
    configuration = _configuration(table)
    if configuration is None and (Path(table) / "_delta_log").is_dir():
        return
    recipe = Recipe.of_table(configuration, table, **request.recipe_changes)
    if top is None or source.layout not in FOLDER_LAYOUTS:
        return
    wanted = Wanted(source.layout, keep_names=recipe.keep_folder_names).decided(top.folder_names)
    top.check(folder, wanted)
    if source.layout == CLASS_FOLDERS and request.classes is not None:
        known = {wanted.class_of([name, ""]) or name for name in top.folder_names}
        known.update(read(Table.of(table)).numbers)
        check_classes_known(request.classes, known, source.name, location)


def check_classes_known(wanted: Collection[str], known: Collection[str], source: str, location: str) -> None:
    """Checks that classes that were asked for are known."""
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise InvalidArgumentError(
            f"classes: {unknown[0]!r} is a class neither of {source} nor of {location}. "
            f"Leave it out until there are files of it; {suggestion(unknown[0], known)}"
        )


def check_place(location: str) -> None:
    """Checks that a table may be made, or exists, at a location."""
    path = Path(absolute(location))
    above = next((one for one in path.parents if one.is_file()), None) if "://" not in location else None
    if above is not None:
        raise NotADeltaTableError(f"{location} cannot be a table: {above} is a file; give a path below folders")
    is_taken = "://" not in location and path.exists() and (not path.is_dir() or any(path.iterdir()))
    # A log without a version is what a first ingest leaves that died before its commit; its files disturb no writer.
    if is_taken and not (path / "_delta_log").is_dir():
        raise NotADeltaTableError(
            f"{location} exists and is not a Delta table; ingest into a path that does not exist yet, or an image table"
        )


def _configuration(table: str) -> Mapping[str, str] | None:
    """Reads the table's properties; None if the table does not exist yet, or delta-rs does not open it."""
    if not (Path(table) / "_delta_log").is_dir():
        return None
    try:
        return dict(open_table(Table.of(table)).metadata().configuration)
    except TableError:
        return None
