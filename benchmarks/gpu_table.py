"""An image table of the photographs of a folder, written without Spark, with the columns that an ingest writes."""

from __future__ import annotations

from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .photographs import Photographs, class_name, files

if TYPE_CHECKING:
    import pyarrow as pa

_ROW_GROUP_ROWS = 800  # of 40 kB each: near the 32 MiB of an ingest
_FILE_ROWS = 1600


def write_table(photos: Photographs, table: Path, train: int, validation: int) -> list[Path]:
    """Stores photographs as they are; gives the files of the training split.

    Args:
        photos: The photographs, at least as many as rows.
        table: Where the table is written.
        train: Rows of split `train`.
        validation: Rows of split `validation`.
    """
    from deltalake import ColumnProperties, WriterProperties, write_deltalake

    from lakelens.etl.model.schema import PARTITION_COLUMNS, TABLE_PROPERTIES

    paths = files(photos)[: train + validation]
    written = WriterProperties(
        compression="UNCOMPRESSED",
        max_row_group_size=_ROW_GROUP_ROWS,
        default_column_properties=ColumnProperties(dictionary_enabled=False),
    )
    of_split = {"train": paths[:train], "validation": paths[train:]}
    for split, members in of_split.items():
        remaining = iter(members)
        while part := list(islice(remaining, _FILE_ROWS)):
            write_deltalake(
                str(table),
                _rows(part, split),
                mode="append",
                partition_by=list(PARTITION_COLUMNS),
                configuration=dict(TABLE_PROPERTIES),
                writer_properties=written,
            )
    return of_split["train"]


def class_names(photos: Photographs) -> list[str]:
    """Gives the names of the classes by their numbers."""
    return [class_name(number) for number in range(photos.classes)]


def label_of(path: Path) -> int:
    """Gives the class number of a photograph: its folder's number counts from 1."""
    return int(path.parent.name.split(".")[0]) - 1


def _rows(paths: list[Path], split: str) -> pa.Table:
    import pyarrow as pa
    from PIL import Image

    from lakelens.etl.model.schema import image_arrow_schema

    rows: list[dict[str, Any]] = []
    for path in paths:
        data = path.read_bytes()
        with Image.open(path) as image:
            width, height = image.size
        rows.append(
            {
                "path": path.as_uri(),
                "image": data,
                "format": "jpeg",
                "height": height,
                "width": width,
                "label": label_of(path),
                "label_name": path.parent.name,
                "annotations": [],
                "split": split,
                "content_hash": sha256(data).hexdigest(),
                "source_length": len(data),
            }
        )
    return pa.Table.from_pylist(rows, schema=image_arrow_schema())
