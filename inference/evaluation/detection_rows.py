"""What an evaluation needs of the detections of each image: matched with its objects, in Spark tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ...errors import NotAnImageTableError
from ...etl.annotations.frames import ImageFrames
from ...etl.model.schema import ANNOTATION_FIELDS, ANNOTATIONS_TYPE, BOX_CORNERS, ddl_of
from ...log.delta_types import arrow_type
from ...spark.workers import map_in_arrow
from ...training.tasks.boxes import (
    COLUMNS,
    HITS,
    IGNORED,
    LABEL,
    MATCHED,
    SKIPPED,
    Floats,
    Matches,
    matches_of,
    score_of,
)
from ..scoring.predictions import from_score_on
from .detection_metrics import DetectionMetrics, measure_detections

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

# The size of the stored image and its file, `source_files.FRAME_TYPE`.
FRAME = "frame"
NULL = "(null)"
# Made of each row: whether somebody has annotated it, class and matches of its objects and detections.
_MATCH = [("label", pa.int32()), ("score", pa.float32()), ("hits", pa.int32()), ("skipped", pa.int32())]
_MADE = pa.schema(
    [("annotated", pa.bool_()), ("objects", pa.list_(pa.int32())), ("matches", pa.list_(pa.struct(_MATCH)))]
)


def truths_sql(column: str, declared: str) -> str | None:
    """Writes the SQL that makes `ANNOTATIONS_TYPE` of a column; None without a class number and four corners."""
    kind = arrow_type(declared)
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return None
    found = {field.name for field in kind.value_type}
    if not found.issuperset(("label", *BOX_CORNERS)):
        return None
    fields = ", ".join(f"'{name}', {f'box.{name}' if name in found else 'null'}" for name in ANNOTATION_FIELDS)
    return f"cast(transform(`{column}`, box -> if(box is null, null, named_struct({fields}))) AS {ANNOTATIONS_TYPE})"


def with_matches(rows: DataFrame, passed: Mapping[str, str]) -> DataFrame:
    """Matches the detections of each row with its objects, which are in pixels of the stored image."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = {name: batch.column(i) for i, name in enumerate(batch.schema.names)}
            values = [columns[name].to_pylist() for name in ("detections", FRAME)]
            detections = [_in_stored_image(found, frame) for found, frame in zip(*values, strict=True)]
            lists = zip(columns["path"].to_pylist(), detections, columns["annotations"].to_pylist(), strict=True)
            made = [_matched(*row) for row in lists]
            columns["detections"] = pa.array(detections, columns["detections"].type)
            arrays = {field.name: pa.array([row[field.name] for row in made], field.type) for field in _MADE}
            yield pa.RecordBatch.from_pydict({**{name: columns[name] for name in passed}, **arrays})

    ddl = ", ".join([*(f"{name} {kind}" for name, kind in passed.items()), ddl_of(_MADE)])
    return map_in_arrow(rows.select(*dict.fromkeys(["path", *passed, "detections", "annotations", FRAME])), run, ddl)


@dataclass(frozen=True)
class MatchedRows:
    """The matches of all annotated rows, on the driver: 24 bytes per detection, and the values of slices."""

    matches: pd.DataFrame  # A row per detection: `label`, `score`, `hits`, `skipped`
    objects: pd.DataFrame  # `objects` by `label`
    rows: pd.DataFrame  # `rows` and `errors` by `annotated`

    @classmethod
    def collect(cls, rows: DataFrame, slices: Sequence[str]) -> MatchedRows:
        """Collects what `with_matches` has made; the columns of slices stay in all three frames."""
        from pyspark.sql import functions

        kept = rows.where("annotated")
        one, errors = functions.count(functions.lit(1)), functions.count("error")
        return cls(
            kept.select(*slices, functions.inline("matches")).toPandas(),
            kept.select(*slices, functions.explode("objects").alias("label"))
            .groupBy(*slices, "label")
            .agg(one.alias("objects"))
            .toPandas(),
            rows.groupBy(*slices, "annotated").agg(one.alias("rows"), errors.alias("errors")).toPandas(),
        )

    def values_of(self, column: str, most: int) -> list[str]:
        """Lists the values of a slice in annotated rows, those with the most rows first."""
        annotated = self.rows[self.rows["annotated"]].fillna({column: NULL})
        sizes = annotated.groupby(column)["rows"].sum()
        return sorted(sizes.index, key=lambda value: (-sizes[value], value))[:most]

    def where(self, column: str, value: str) -> MatchedRows:
        """Takes the rows of one value of a slice."""
        return MatchedRows(
            *(frame[frame[column].fillna(NULL) == value] for frame in (self.matches, self.objects, self.rows))
        )

    def measure(self, names: Mapping[int, str]) -> DetectionMetrics:
        """Derives the metrics; `names` has class names by number."""
        annotated = self.rows[self.rows["annotated"]]
        return measure_detections(
            self._array(),
            {int(label): int(count) for label, count in self.objects.groupby("label")["objects"].sum().items()},
            names,
            rows=int(annotated["rows"].sum()),
            errors=int(annotated["errors"].sum()),
            unlabelled=int(self.rows["rows"].sum() - annotated["rows"].sum()),
        )

    def _array(self) -> Matches:
        """Returns the matches as int64 [detections, 4]."""
        bits = self.matches["score"].to_numpy(np.float32).view(np.int32)
        columns = [self.matches["label"], bits, self.matches["hits"], self.matches["skipped"]]
        return np.column_stack([np.asarray(column, np.int64) for column in columns])


def with_mistakes(rows: DataFrame, least_score: float) -> DataFrame:
    """Drops detections below a score; adds how many objects of each row are missed, and detections invented."""
    from pyspark.sql import functions

    def count(condition: str) -> str:
        is_sure = f"one.score >= cast({least_score!r} as float)"
        return f"size(filter(matches, one -> {is_sure} and {condition}))"

    return rows.withColumns(
        {
            "missed": functions.expr(f"size(objects) - {count('one.hits & 1 = 1')}"),
            "invented": functions.expr(count("(one.hits | one.skipped) & 1 = 0")),
            "detections": from_score_on(least_score),
        }
    )


def names_in_annotations(rows: DataFrame) -> dict[int, str]:
    """Finds the names of the classes of all objects, by number."""
    from pyspark.sql import functions

    boxes = rows.select(functions.inline("annotations")).where("label is not null and label_name != ''")
    return {int(row.label): str(row.label_name) for row in boxes.select("label", "label_name").distinct().collect()}


def _matched(
    path: str, detections: Sequence[Mapping[str, Any]] | None, truths: Sequence[Mapping[str, Any]] | None
) -> dict[str, Any]:
    found = _rows_of(detections or (), "score", "label")
    _require_usable(path, truths or ())
    known = _rows_of(truths or (), "label", "difficult")
    matches = matches_of(found, known)
    objects = known[known[:, IGNORED] == 0, LABEL].astype(np.int32)
    scores = score_of(matches)
    listed = zip(matches[:, MATCHED], scores, matches[:, HITS], matches[:, SKIPPED], strict=True)
    return {
        "annotated": truths is not None,
        "objects": objects,
        "matches": [
            {"label": int(label), "score": score, "hits": int(hit), "skipped": int(skipped)}
            for label, score, hit, skipped in listed
        ],
    }


def _require_usable(path: str, truths: Sequence[Mapping[str, Any] | None]) -> None:
    """Refuses an object without a class or a corner, as a training does; an ingest leaves none."""
    for box in truths:
        lacking = [name for name in ("label", *BOX_CORNERS) if box is None or box[name] is None]
        if lacking:
            raise NotAnImageTableError(
                f"{path}: a box in column 'annotations' has null as {lacking[0]}, so that nothing can be compared with "
                "it; correct the row, or ingest the annotations again"
            )


def _in_stored_image(
    detections: Sequence[Mapping[str, Any]] | None, frame: Mapping[str, Any] | None
) -> Sequence[Mapping[str, Any]] | None:
    if not detections or frame is None:
        return detections
    frames = ImageFrames.of(frame["width"], frame["height"], frame["source"])
    corners = frames.to_stored(np.array([[box[name] for name in BOX_CORNERS] for box in detections], np.float64))
    return [
        {**box, **dict(zip(BOX_CORNERS, row, strict=True))}
        for box, row in zip(detections, corners.tolist(), strict=True)
    ]


def _rows_of(boxes: Sequence[Mapping[str, Any]], *more: str) -> Floats:
    """Gives boxes as an array, float32 [boxes, 6]: the corners, then two more fields."""
    rows = [[float(box[name] or 0) for name in (*BOX_CORNERS, *more)] for box in boxes]
    return np.array(rows, np.float32).reshape(-1, COLUMNS)
