"""The columns and properties of an image table: names, types and Delta settings."""

from __future__ import annotations

import pyarrow as pa

PATH = "path"
IMAGE = "image"
FORMAT = "format"
HEIGHT = "height"
WIDTH = "width"
LABEL = "label"
LABEL_NAME = "label_name"
ANNOTATIONS = "annotations"
SPLIT = "split"
CONTENT_HASH = "content_hash"
SOURCE_LENGTH = "source_length"
SOURCE_MODIFIED = "source_modified"
BATCH_ID = "batch_id"
# Digest of the image's annotation in a manifest, VOC or COCO, so a corrected box or class is a change; null for class
# folders, where it is in the path.
ANNOTATION_HASH = "annotation_hash"
# How the image was made of its file: inference carries boxes back to the file's pixels (`annotations.frames`).
SOURCE = "source"

# What the next ingest needs to know of a source; a training does not. A quarantine has them, too.
INGEST_COLUMNS = frozenset({CONTENT_HASH, SOURCE_LENGTH, SOURCE_MODIFIED, BATCH_ID, ANNOTATION_HASH})

PARTITION_COLUMNS = (SPLIT,)

# Statistics of everything that is filtered on; never of the image, whose first bytes would fill the log.
_STATISTICS_COLUMNS = (PATH, FORMAT, HEIGHT, WIDTH, LABEL, LABEL_NAME, CONTENT_HASH, SOURCE_LENGTH, BATCH_ID)

TABLE_PROPERTIES = {
    "delta.dataSkippingStatsColumns": ",".join(_STATISTICS_COLUMNS),
    # A feed that reads without Spark would show deleted rows as long as a vector marks them.
    "delta.enableDeletionVectors": "false",
    # A version that a run has recorded is to be read years later; its log would be gone after 30 days.
    "delta.logRetentionDuration": "interval 3650 days",
}

# Near 32 MiB: large enough for one sequential read, small enough that a rank holds several while it shuffles.
ROW_GROUP_BYTES = 32 * 1024 * 1024
# A data file of a split holds about this much, so that a rank reads several per epoch and none for long.
TARGET_FILE_BYTES = 128 * 1024 * 1024

BOX_CORNERS = ("xmin", "ymin", "xmax", "ymax")
_SQL_TYPES = {
    pa.bool_(): "BOOLEAN",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.timestamp("us", tz="UTC"): "TIMESTAMP",
}


def ddl_of(columns: pa.Schema) -> str:
    """Writes columns as Spark takes them."""
    return ", ".join(f"{column.name} {sql_type(column.type)}" for column in columns)


def sql_type(kind: pa.DataType) -> str:
    """Writes an Arrow type as Spark's SQL does."""
    if pa.types.is_list(kind):
        return f"ARRAY<{sql_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{field.name}: {sql_type(field.type)}' for field in kind)}>"
    return _SQL_TYPES[kind]


# Size and time of a source file.
STAMP = pa.schema([(SOURCE_LENGTH, pa.int64()), (SOURCE_MODIFIED, pa.timestamp("us", tz="UTC"))])
_CORNERS = [(name, pa.float64()) for name in BOX_CORNERS]
_BOX = pa.struct([("label", pa.int32()), ("label_name", pa.string()), *_CORNERS, ("difficult", pa.bool_())])
ANNOTATION_FIELDS = tuple(field.name for field in _BOX)
_SIDES = [(name, pa.int32()) for name in ("width", "height", "orientation")]

IMAGE_TABLE = pa.schema(
    [
        (PATH, pa.string()),
        (IMAGE, pa.binary()),
        (FORMAT, pa.string()),
        (HEIGHT, pa.int32()),
        (WIDTH, pa.int32()),
        (LABEL, pa.int32()),
        (LABEL_NAME, pa.string()),
        (ANNOTATIONS, pa.list_(_BOX)),
        (SPLIT, pa.string()),
        (CONTENT_HASH, pa.string()),
        *STAMP,
        (BATCH_ID, pa.string()),
        (ANNOTATION_HASH, pa.string()),
        (SOURCE, pa.struct([*_SIDES, ("resize", pa.string())])),
    ]
)
SOURCE_TYPE, ANNOTATIONS_TYPE = (sql_type(IMAGE_TABLE.field(name).type) for name in (SOURCE, ANNOTATIONS))

# What became of a source: a row of the image table, with the reasons of repaired and dropped boxes; or `reason` and
# `error`, and the class of the row that the image table has of it.
PROBLEMS = "problems"
_WHY_NOT = [(name, pa.string()) for name in ("reason", "error", "stored_class")]
OUTCOMES = pa.schema([*IMAGE_TABLE, (PROBLEMS, pa.list_(pa.string())), *_WHY_NOT])
QUARANTINE = pa.schema(
    [
        (PATH, pa.string()),
        ("reason", pa.string()),
        ("error", pa.string()),
        (LABEL_NAME, pa.string()),
        *STAMP,
        (BATCH_ID, pa.string()),
        (ANNOTATION_HASH, pa.string()),
        # Of deleted rows, whose files stay out as long as their content is the same; null for bad files.
        (CONTENT_HASH, pa.string()),
    ]
)
