"""The bytes of files: digested by tasks, or read by Spark where the Python workers cannot open them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ...errors import InvalidArgumentError, SourceNotFoundError, UsageError
from ...spark.port import parallelism
from ...spark.workers import map_in_arrow
from ..files import local_path
from ..model import schema
from ..spark.catalog import pattern_of
from ..spark.writing_session import set_batch_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from .source import Listing

CONTENT = "content"
# What Spark raises where the bytes of a row are others than those that were listed.
OTHER_ROWS = (
    "the query of the DataFrame gives other rows each time it is computed, and Spark had to compute it again: write it "
    "to a table first, and ingest what is read from that"
)
_HASHED_AT_ONCE = 64
# A Connect session looks for the files when it reads them.
_GONE = re.compile(r"FileNotFoundException|\[PATH_NOT_FOUND\]")


def content_hashes(listing: Listing, files: DataFrame, count: int) -> DataFrame:
    """Has Spark's tasks digest files: rows of `path` and `hash`, which is null where a file cannot be read."""
    from pyspark.sql import functions as F

    if listing.read_contents is not None:
        read = listing.read_contents(files, _HASHED_AT_ONCE)
        return read.select(schema.PATH, F.sha2(CONTENT, 256).alias("hash"))
    tasks = min(count, 2 * parallelism(files.sparkSession))
    paths = files.select(schema.PATH).repartition(tasks)
    return map_in_arrow(paths, _hash_batches, f"{schema.PATH} STRING, hash STRING")


def hash_file(uri: str) -> str | None:
    """Digests the content of a local file; None where it cannot be read."""
    digest = hashlib.sha256()
    try:
        with open(local_path(uri), "rb") as file:  # noqa: PTH123  bytes: names that are not UTF-8 are names too
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except OSError:
        return None
    return digest.hexdigest()


def _hash_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        paths = batch.column(schema.PATH).to_pylist()
        hashes = [hash_file(path) for path in paths]
        columns = [pa.array(paths, pa.string()), pa.array(hashes, pa.string())]
        yield pa.RecordBatch.from_arrays(columns, [schema.PATH, "hash"])


def read_contents(spark: SparkSession, files: DataFrame, batch_rows: int) -> DataFrame:
    """Adds a column `content` with the bytes of each file, read by Spark; null if the file does not exist."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    # Spark's reader skips empty files.
    empty_or_absent = files.where(f"{schema.SOURCE_LENGTH} <= 0").withColumn(
        "content", F.when(F.col(schema.SOURCE_LENGTH) == 0, F.lit(b""))
    )
    paths = [row[schema.PATH] for row in files.where(f"{schema.SOURCE_LENGTH} > 0").select(schema.PATH).collect()]
    if not paths:
        return empty_or_absent
    set_batch_rows(spark, batch_rows)
    reader = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    try:
        contents = reader.load([pattern_of(path) for path in paths])
    except AnalysisException as error:
        raise _gone(str(error).splitlines()[0]) from error
    # An outer join would shuffle the bytes, so the other files are added by a union.
    read = contents.select(F.col("path"), F.col("content")).join(F.broadcast(files), schema.PATH)
    return read.unionByName(empty_or_absent)


def failure_of_source(error: Exception, table: str) -> UsageError | None:
    """Returns the typed error when a Spark job failed because its source changed while it was read, else None."""
    # The message may name a file by the target of a mount, not by the source's folder.
    if OTHER_ROWS in str(error):
        return InvalidArgumentError(OTHER_ROWS)
    lines = [line.strip() for line in str(error).splitlines() if _GONE.search(line)]
    ours = next((line for line in lines if table not in line), None)
    return None if ours is None else _gone(ours)


def _gone(what: str) -> SourceNotFoundError:
    return SourceNotFoundError(f"a file went away while it was ingested ({what.strip()[:500]}); run the ingest again")
