"""An image table of the photographs of a folder, written without Spark, with the columns that an ingest writes."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from itertools import islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .photographs import Photographs

if TYPE_CHECKING:
    from lakelens.etl.images.recipe import Recipe

_ROW_GROUP_ROWS = 800  # of 40 kB each: near the 32 MiB of an ingest
_FILE_ROWS = 1600
_FEW = 64


def write_table(photos: Photographs, table: Path, train: int, validation: int, side: int | None = None) -> list[Path]:
    """Stores photographs; gives the files of the training split."""
    import pyarrow as pa
    from deltalake import ColumnProperties, WriterProperties, write_deltalake

    from lakelens.etl.images.recipe import Recipe
    from lakelens.etl.model.schema import IMAGE_TABLE, PARTITION_COLUMNS, TABLE_PROPERTIES

    paths = photos.files[: train + validation]
    written = WriterProperties(
        compression="UNCOMPRESSED",
        max_row_group_size=_ROW_GROUP_ROWS,
        default_column_properties=ColumnProperties(dictionary_enabled=False),
    )
    of_split = {"train": paths[:train], "validation": paths[train:]}
    recipe = Recipe(store="original") if side is None else Recipe(size=side)
    with ProcessPoolExecutor(os.cpu_count() if len(paths) > _FEW else 1) as pool:
        for split, members in of_split.items():
            rows = pool.map(_row, members, repeat(split), repeat(recipe), chunksize=16)
            while part := list(islice(rows, _FILE_ROWS)):
                write_deltalake(
                    str(table),
                    pa.Table.from_pylist(part, schema=IMAGE_TABLE),
                    mode="append",
                    partition_by=list(PARTITION_COLUMNS),
                    configuration=dict(TABLE_PROPERTIES),
                    writer_properties=written,
                )
    return of_split["train"]


def label_of(path: Path) -> int:
    """Gives the class number of a photograph: its folder's number counts from 1."""
    return int(path.parent.name.split(".")[0]) - 1


def _row(path: Path, split: str, recipe: Recipe) -> dict[str, Any]:
    from lakelens.etl.images.isolated_decoder import make_stored_image
    from lakelens.etl.images.recipe import Limits

    data = path.read_bytes()
    stored = make_stored_image(data, recipe, Limits())
    return {
        "path": path.as_uri(),
        "image": stored.image,
        "format": stored.format,
        "height": stored.height,
        "width": stored.width,
        "label": label_of(path),
        "label_name": path.parent.name,
        "annotations": [],
        "split": split,
        "content_hash": stored.content_hash,
        "source_length": len(data),
    }
