"""The SQL of what an image table records of its source files; pure."""

from __future__ import annotations

from collections.abc import Mapping

from ...etl.annotations.frames import SourceFile
from ...etl.model import schema
from ...log.delta_types import arrow_type

# `ImageFrames` as a column.
FRAME_TYPE = f"STRUCT<width: INT, height: INT, source: {schema.SOURCE_TYPE}>"


def source_sql(declared: Mapping[str, str], image_column: str) -> str:
    """Writes the SQL of the source file of each image, of type `schema.SOURCE_TYPE`.

    It is null if the table has no column `source` as an ingest writes it, or `image_column` is another image than the
    one that the ingest has made. Boxes are then in pixels of the image itself.
    """
    if not _has_source(declared, image_column):
        return f"cast(null AS {schema.SOURCE_TYPE})"
    fields = ", ".join(f"'{name}', {schema.SOURCE}.{name}" for name in SourceFile._fields)
    return f"cast(named_struct({fields}) AS {schema.SOURCE_TYPE})"


def frame_sql(declared: Mapping[str, str], image_column: str) -> str:
    """Writes the SQL of the size of each image and of its file, of type `FRAME_TYPE`; null if `source_sql` is."""
    if not _has_source(declared, image_column):
        return f"cast(null AS {FRAME_TYPE})"
    sizes = f"'width', {schema.WIDTH}, 'height', {schema.HEIGHT}"
    return f"cast(named_struct({sizes}, 'source', {source_sql(declared, image_column)}) AS {FRAME_TYPE})"


def _has_source(declared: Mapping[str, str], image_column: str) -> bool:
    import pyarrow as pa

    # A table of others may have a column of this name with the camera in it.
    if image_column != schema.IMAGE or not {schema.SOURCE, schema.HEIGHT, schema.WIDTH} <= declared.keys():
        return False
    kind = arrow_type(declared[schema.SOURCE])
    return pa.types.is_struct(kind) and {field.name for field in kind}.issuperset(SourceFile._fields)
