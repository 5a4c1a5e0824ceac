"""Images that came in with an ingest and look like one of another split: what a hash of the content cannot see.

The stored images are looked at again, because a hash of each row would be one more column for every reader, and a part
of every ingest for a question that is asked now and then. They are decoded at an eighth of their size.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...errors import ImageError
from ...results import ReadableResult
from ..images.perceptual_hash import DEFAULT_MAX_DISTANCE, Hashes, find_nearest
from ..model import schema
from ..spark.catalog import read_table
from ..spark.writing_session import writing_session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_DDL = f"{schema.PATH} STRING, {schema.SPLIT} STRING, is_new BOOLEAN, high BIGINT, low BIGINT"
# Rows of an Arrow batch: raw images of 299 pixels take 0.3 MB each.
_ROWS_AT_ONCE = 128
_MOST_EXAMPLES = 10


class NearPair(NamedTuple):
    """Two images of different splits that look alike.

    Attributes:
        path: The one that came in.
        split: Its split.
        other_path: The other.
        other_split: Its split.
        distance: Bits of 128 by which their perceptual hashes differ.
    """

    path: str
    split: str
    other_path: str
    other_split: str
    distance: int


@dataclass(frozen=True, repr=False)
class NearDuplicates(ReadableResult):
    """What was found.

    Attributes:
        images: Images that came in and look like one of another split.
        compared: Images of the table that were compared; pictures of nearly one colour are not.
        examples: The nearest pairs, each image that came in at most once.
    """

    images: int
    compared: int
    examples: tuple[NearPair, ...]


def find_across_splits(
    spark: SparkSession,
    location: str,
    version: int,
    batch_ids: Collection[str],
    max_distance: int = DEFAULT_MAX_DISTANCE,
) -> NearDuplicates:
    """Compares the rows of some batches with all rows of a version.

    The workers decode and hash; the driver holds about 30 bytes for each image and compares in near-linear time.

    Args:
        spark: The session.
        location: The table.
        version: The version that holds the batches.
        batch_ids: The batches.
        max_distance: Bits of 128 that may differ, 0-15.
    """
    from pyspark import StorageLevel
    from pyspark.sql import functions as F

    session = writing_session(spark)
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(_ROWS_AT_ONCE))
    session.conf.set("spark.sql.execution.arrow.pyspark.enabled", "true")
    is_new = F.col(schema.BATCH_ID).isin(*batch_ids).alias("is_new")
    columns = [schema.PATH, schema.SPLIT, schema.IMAGE, schema.FORMAT, schema.WIDTH, schema.HEIGHT]
    rows = read_table(session, location, version).select(*columns, is_new)
    hashed = rows.mapInArrow(hash_rows, _DDL).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        found = hashed.select(schema.SPLIT, "is_new", "high", "low").toPandas()
        hashes = found[["high", "low"]].to_numpy(np.int64).view(np.uint64)
        names, splits = np.unique(found[schema.SPLIT].to_numpy(str), return_inverse=True)
        near, pairs = compare(hashes, splits.reshape(-1), found["is_new"].to_numpy(bool), max_distance)
        return NearDuplicates(near, len(found), _with_paths(hashed, hashes, pairs, [str(name) for name in names]))
    finally:
        hashed.unpersist()


class HashPair(NamedTuple):
    """Two rows, by the first that has their hash and split: row numbers, and the bits that differ."""

    row: int
    other_row: int
    row_split: int
    other_split: int
    distance: int


def compare(
    hashes: Hashes, splits: npt.NDArray[Any], is_new: npt.NDArray[np.bool_], max_distance: int
) -> tuple[int, list[HashPair]]:
    """Counts new rows that are near a row of another split, and names the nearest pairs; pure.

    Args:
        hashes: uint64 [n, 2].
        splits: Number of each row's split, [n].
        is_new: Which rows are asked about, [n].
        max_distance: Bits that may differ, 0-15.
    """
    if not len(hashes):
        return 0, []
    unique, first_rows, codes = np.unique(hashes, axis=0, return_index=True, return_inverse=True)
    codes, width = codes.reshape(-1), int(splits.max()) + 1
    held = np.bincount(codes * width + splits, minlength=len(unique) * width).reshape(len(unique), width) > 0
    new = np.zeros_like(held)
    new[codes[is_new], splits[is_new]] = True
    nearest = find_nearest(unique, held, max_distance)
    # Every hash is near itself.
    others = np.where(held, np.arange(len(unique))[:, None], nearest.rows)
    distances = np.where(held, 0, nearest.distances)
    near = np.zeros_like(held)
    candidates: list[HashPair] = []
    for split in range(width):
        for other_split in range(width):
            if other_split != split:
                met = np.flatnonzero(new[:, split] & (others[:, other_split] >= 0))
                near[met, split] = True
                found = met[np.argsort(distances[met, other_split], kind="stable")][:_MOST_EXAMPLES].tolist()
                candidates += [
                    HashPair(
                        int(first_rows[one]),
                        int(first_rows[others[one, other_split]]),
                        split,
                        other_split,
                        int(distances[one, other_split]),
                    )
                    for one in found
                ]
    count = int(near[codes[is_new], splits[is_new]].sum())
    chosen: dict[tuple[int, int], HashPair] = {}
    for pair in sorted(candidates, key=lambda found: found.distance):
        chosen.setdefault((pair.row, pair.row_split), pair)
    return count, list(chosen.values())[:_MOST_EXAMPLES]


def hash_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Hashes stored images in a task; those of nearly one colour, and what no decoder reads, are left out."""
    import pyarrow as pa

    arrow_schema = pa.schema(
        [
            (schema.PATH, pa.string()),
            (schema.SPLIT, pa.string()),
            ("is_new", pa.bool_()),
            ("high", pa.int64()),
            ("low", pa.int64()),
        ]
    )
    for batch in batches:
        rows = []
        for row in batch.to_pylist():
            found = _hash_of(row)
            if found is not None:
                high, low = np.array(found, np.uint64).view(np.int64).tolist()
                kept = {name: row[name] for name in (schema.PATH, schema.SPLIT, "is_new")}
                rows.append({**kept, "high": high, "low": low})
        yield pa.RecordBatch.from_pylist(rows, schema=arrow_schema)


def _hash_of(row: dict[str, Any]) -> tuple[int, int] | None:
    from ..profile.images import hash_of_row

    try:
        return hash_of_row(row)[0]
    except ImageError:  # the profile counts the unreadable
        return None


def _with_paths(hashed: DataFrame, hashes: Hashes, pairs: list[HashPair], names: list[str]) -> tuple[NearPair, ...]:
    """Finds a path for each side of each pair."""
    from pyspark.sql import functions as F

    if not pairs:
        return ()
    signed = hashes.view(np.int64)
    wanted = {int(signed[row, 0]) for pair in pairs for row in (pair.row, pair.other_row)}
    rows = hashed.where(F.col("high").isin(*wanted)).groupBy("high", "low", schema.SPLIT)
    found = rows.agg(F.min(schema.PATH).alias("any"), F.min(F.when(F.col("is_new"), F.col(schema.PATH))).alias("new"))
    by_key = {(row["high"], row["low"], row[schema.SPLIT]): row for row in found.collect()}
    result = []
    for pair in pairs:
        one = by_key[int(signed[pair.row, 0]), int(signed[pair.row, 1]), names[pair.row_split]]
        other = by_key[int(signed[pair.other_row, 0]), int(signed[pair.other_row, 1]), names[pair.other_split]]
        result.append(NearPair(one["new"], one[schema.SPLIT], other["any"], other[schema.SPLIT], pair.distance))
    return tuple(result)
