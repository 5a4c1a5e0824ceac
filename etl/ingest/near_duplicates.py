"""Images that came in with an ingest and look like one of another split; decodes the table at an eighth of its size."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...errors import ImageError
from ...freed_memory import keep_freed_memory
from ...results import ReadableResult
from ...spark.port import kept
from ...spark.workers import map_in_arrow
from ..images.perceptual_hash import Hashes, decode_small, find_neighbours, perceptual_hash
from ..model import schema
from ..spark.catalog import read_table
from ..spark.writing_session import set_batch_rows, writing_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_HALVES = [(name, pa.int64()) for name in ("high", "low")]
_HASHED = pa.schema([(schema.PATH, pa.string()), (schema.SPLIT, pa.string()), ("is_new", pa.bool_()), *_HALVES])
# Rows of an Arrow batch: raw images of 299 pixels take 0.3 MB each.
_ROWS_AT_ONCE = 128
_MOST_EXAMPLES = 10


class NearPair(NamedTuple):
    """Two images of different splits that look alike."""

    path: str  # The new image
    split: str  # Its split
    other_path: str  # The other
    other_split: str  # Its split
    distance: int  # Bits of 128 by which their perceptual hashes differ


@dataclass(frozen=True, repr=False)
class NearDuplicates(ReadableResult):
    """What was found."""

    images: int  # Images that came in and look like one of another split
    compared: int  # Images of the table that were compared; pictures of nearly one colour are not
    examples: tuple[NearPair, ...]  # The nearest pairs, each image that came in at most once

    @classmethod
    def recorded(cls, values: Mapping[str, Any]) -> NearDuplicates:
        """Makes it from the fields that JSON has kept."""
        return cls(**{**values, "examples": tuple(NearPair(*pair) for pair in values["examples"])})


def find_across_splits(spark: SparkSession, location: str, version: int, batch_ids: Collection[str]) -> NearDuplicates:
    """Compares the rows of some batches with all rows of a version; the driver holds about 30 bytes for each image."""
    from pyspark.sql import functions as F

    session = writing_session(spark)
    set_batch_rows(session, _ROWS_AT_ONCE)
    is_new = F.col(schema.BATCH_ID).isin(*batch_ids).alias("is_new")
    columns = [schema.PATH, schema.SPLIT, schema.IMAGE, schema.FORMAT, schema.WIDTH, schema.HEIGHT]
    rows = read_table(session, location, version).select(*columns, is_new)
    with kept(map_in_arrow(rows, hash_rows, schema.ddl_of(_HASHED))) as hashed:
        found = hashed.select(schema.SPLIT, "is_new", "high", "low").toPandas()
        hashes = found[["high", "low"]].to_numpy(np.int64).view(np.uint64)
        splits = [str(split) for split in found[schema.SPLIT]]
        _, numbers = np.unique(splits, return_inverse=True)
        near, pairs = compare(hashes, numbers.reshape(-1), found["is_new"].to_numpy(bool))
        return NearDuplicates(near, len(found), _with_paths(hashed, hashes, splits, pairs))


def compare(
    hashes: Hashes, splits: npt.NDArray[Any], is_new: npt.NDArray[np.bool_]
) -> tuple[int, list[tuple[int, int, int]]]:
    """Counts new rows that are near a row of another split, and names the nearest pairs; pure."""
    if not len(hashes):
        return 0, []
    found = find_neighbours(hashes, splits, int(splits.max()) + 1)
    new, near = np.zeros(found.held.shape, bool), np.zeros(found.held.shape, bool)
    new[found.codes[is_new], splits[is_new]] = True
    for split, other in np.ndindex(near.shape[1], near.shape[1]):
        if split != other:
            near[:, split] |= found.is_near(split, other)
    nearest: dict[int, tuple[int, int, int]] = {}
    for pair in found.pairs(new):
        if len(nearest) == _MOST_EXAMPLES:
            break
        nearest.setdefault(pair[0], pair)
    return int(near[found.codes[is_new], splits[is_new]].sum()), list(nearest.values())


def hash_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Hashes stored images in a task; those of nearly one colour, and what no decoder reads, are left out."""
    keep_freed_memory()
    for batch in batches:
        rows = []
        for row in batch.to_pylist():
            with suppress(ImageError):  # the profile counts the unreadable
                found = perceptual_hash(decode_small(row).image)
                if found is not None:
                    high, low = np.array(found, np.uint64).view(np.int64).tolist()
                    kept = {name: row[name] for name in (schema.PATH, schema.SPLIT, "is_new")}  # not the image
                    rows.append({**kept, "high": high, "low": low})
        yield pa.RecordBatch.from_pylist(rows, schema=_HASHED)


def _with_paths(
    hashed: DataFrame, hashes: Hashes, splits: Sequence[str], pairs: list[tuple[int, int, int]]
) -> tuple[NearPair, ...]:
    """Finds a path for each row of each pair."""
    from pyspark.sql import functions as F

    if not pairs:
        return ()
    signed = hashes.view(np.int64)

    def key_of(row: int) -> tuple[int, int, str]:
        return int(signed[row, 0]), int(signed[row, 1]), splits[row]

    wanted = {key_of(row)[0] for pair in pairs for row in pair[:2]}
    rows = hashed.where(F.col("high").isin(*wanted)).groupBy("high", "low", schema.SPLIT)
    found = rows.agg(F.min(schema.PATH).alias("any"), F.min(F.when(F.col("is_new"), F.col(schema.PATH))).alias("new"))
    by_key = {(row["high"], row["low"], row[schema.SPLIT]): row for row in found.collect()}
    return tuple(
        NearPair(by_key[key_of(row)]["new"], splits[row], by_key[key_of(other)]["any"], splits[other], distance)
        for row, other, distance in pairs
    )
