"""The columns and properties of an image table: names, types and Delta settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

FORMATS = ("jpeg", "png", "raw_rgb")

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
ANNOTATION_FIELDS = ("label", "label_name", *BOX_CORNERS, "difficult")
SOURCE_TYPE = "STRUCT<width: INT, height: INT, orientation: INT, resize: STRING>"

IMAGE_TABLE_DDL = (
    f"{PATH} STRING, {IMAGE} BINARY, {FORMAT} STRING, {HEIGHT} INT, {WIDTH} INT, {LABEL} INT, {LABEL_NAME} STRING, "
    f"{ANNOTATIONS} ARRAY<STRUCT<label: INT, label_name: STRING, xmin: DOUBLE, ymin: DOUBLE, xmax: DOUBLE, "
    f"ymax: DOUBLE, difficult: BOOLEAN>>, {SPLIT} STRING, {CONTENT_HASH} STRING, {SOURCE_LENGTH} BIGINT, "
    f"{SOURCE_MODIFIED} TIMESTAMP, {BATCH_ID} STRING, {ANNOTATION_HASH} STRING, "
    f"{SOURCE} {SOURCE_TYPE}"
)
# What became of a source: a row of the image table, with the reasons of repaired and dropped boxes; or `reason` and
# `error`, and the class of the row that the image table has of it.
PROBLEMS = "problems"
OUTCOME_DDL = f"{IMAGE_TABLE_DDL}, {PROBLEMS} ARRAY<STRING>, reason STRING, error STRING, stored_class STRING"
QUARANTINE_DDL = (
    f"{PATH} STRING, reason STRING, error STRING, {LABEL_NAME} STRING, {SOURCE_LENGTH} BIGINT, "
    f"{SOURCE_MODIFIED} TIMESTAMP, {BATCH_ID} STRING, {ANNOTATION_HASH} STRING, {CONTENT_HASH} STRING"
)


def annotation_type() -> pa.DataType:
    """The Arrow type of one row's annotations."""
    import pyarrow as pa

    kinds = {"label": pa.int32(), "label_name": pa.string(), "difficult": pa.bool_()}
    return pa.list_(pa.struct([(name, kinds.get(name, pa.float64())) for name in ANNOTATION_FIELDS]))


def source_type() -> pa.DataType:
    """The Arrow type of `SOURCE_TYPE`."""
    import pyarrow as pa

    sizes = [(name, pa.int32()) for name in ("width", "height", "orientation")]
    return pa.struct([*sizes, ("resize", pa.string())])


def image_arrow_schema() -> pa.Schema:
    """The Arrow schema of an image table, column for column that of `IMAGE_TABLE_DDL`."""
    import pyarrow as pa

    return pa.schema(
        [
            (PATH, pa.string()),
            (IMAGE, pa.binary()),
            (FORMAT, pa.string()),
            (HEIGHT, pa.int32()),
            (WIDTH, pa.int32()),
            (LABEL, pa.int32()),
            (LABEL_NAME, pa.string()),
            (ANNOTATIONS, annotation_type()),
            (SPLIT, pa.string()),
            (CONTENT_HASH, pa.string()),
            (SOURCE_LENGTH, pa.int64()),
            (SOURCE_MODIFIED, pa.timestamp("us", tz="UTC")),
            (BATCH_ID, pa.string()),
            (ANNOTATION_HASH, pa.string()),
            (SOURCE, source_type()),
        ]
    )


def outcome_arrow_schema() -> pa.Schema:
    """The Arrow schema of `OUTCOME_DDL`."""
    import pyarrow as pa

    schema = image_arrow_schema().append(pa.field(PROBLEMS, pa.list_(pa.string())))
    for name in ("reason", "error", "stored_class"):
        schema = schema.append(pa.field(name, pa.string()))
    return schema


def quarantine_arrow_schema() -> pa.Schema:
    """The Arrow schema of a quarantine table, column for column that of `QUARANTINE_DDL`."""
    import pyarrow as pa

    return pa.schema(
        [
            (PATH, pa.string()),
            ("reason", pa.string()),
            ("error", pa.string()),
            (LABEL_NAME, pa.string()),
            (SOURCE_LENGTH, pa.int64()),
            (SOURCE_MODIFIED, pa.timestamp("us", tz="UTC")),
            (BATCH_ID, pa.string()),
            (ANNOTATION_HASH, pa.string()),
            # Of deleted rows, whose files stay out as long as their content is the same; null for bad files.
            (CONTENT_HASH, pa.string()),
        ]
    )
