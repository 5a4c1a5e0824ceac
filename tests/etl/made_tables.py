"""Tables that a first ingest of class folders and other writers make, without Spark: what is there before a test."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import write_deltalake
from version_tables import set_configuration

from lakelens.etl.commit.known_classes import record_classes
from lakelens.etl.files import Wanted, list_below, list_top
from lakelens.etl.images.recipe import RECIPE_PROPERTY, Limits, Recipe
from lakelens.etl.ingest.row_task import BatchTask
from lakelens.etl.model import schema
from lakelens.table import Table

if TYPE_CHECKING:
    from lakelens import ImageTable

LIMITS = Limits()


def append_as_another(table: ImageTable, rows: list[dict[str, Any]]) -> None:
    """Appends rows as a writer that records nothing."""
    write_deltalake(table.location, pa.Table.from_pylist(rows, schema=schema.IMAGE_TABLE), mode="append")


def make_table(place: Path, source: Path, limits: Limits = LIMITS, **recipe_changes: Any) -> Path:
    """Stores the images of a folder as an ingest does, with its ledger and its quarantine; returns the place."""
    recipe, root = (
        Recipe.of_table(None, str(place), **{"keep_folder_names": True, **recipe_changes}),
        os.fsencode(source),
    )
    listed = list_below(root, list_top(root).names, Wanted("class_folders", keep_names=True))
    files = [file for file in listed if file.ignored is None]
    labels = {name: number for number, name in enumerate(sorted({file.label_name for file in files}))}
    columns = {
        schema.PATH: pa.array([file.path for file in files]),
        schema.SOURCE_LENGTH: pa.array([file.length for file in files]),
        schema.SOURCE_MODIFIED: pa.array([file.modified_us for file in files], pa.timestamp("us", tz="UTC")),
        schema.LABEL_NAME: pa.array([file.label_name for file in files]),
        schema.ANNOTATION_HASH: pa.nulls(len(files), pa.string()),
    }
    task = BatchTask(recipe, limits, labels, "first")
    outcomes = pa.Table.from_batches(task.outcomes([pa.RecordBatch.from_pydict(columns)]))
    rows = outcomes.filter(pc.is_null(outcomes["reason"])).select(schema.IMAGE_TABLE.names).cast(schema.IMAGE_TABLE)
    properties = {**schema.TABLE_PROPERTIES, RECIPE_PROPERTY: recipe.as_property()}
    write_deltalake(str(place), rows, partition_by=[*schema.PARTITION_COLUMNS])
    set_configuration(place, 0, **properties)  # delta-rs writes none but its own
    record_classes(Table.of(place), 0, Counter(rows[schema.LABEL_NAME].to_pylist()), labels)
    bad = outcomes.filter(pc.is_valid(outcomes["reason"])).select(schema.QUARANTINE.names)
    if bad.num_rows:
        write_deltalake(f"{place}_quarantine", bad.cast(schema.QUARANTINE))
    return place
