"""Python tasks that leave their worker ready for the next one.

Between two tasks a worker of PySpark collects garbage and invalidates the caches of its importers. The collector walks
over all modules that are loaded (20 ms), and Python before 3.13 reads the directory of pyspark.zip once for each
package that came from it (80 ms): more than a task on a small table takes itself.
"""

from __future__ import annotations

import functools
import gc
import sys
import zipimport
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    Task = Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]

_modules_at_rest = 0


def map_in_arrow(frame: DataFrame, task: Task, columns: str | StructType) -> DataFrame:
    """Applies a function to the Arrow batches of each partition, as `DataFrame.mapInArrow` does."""
    return frame.mapInArrow(functools.partial(_run, task), columns)


def _run(task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    try:
        yield from task(batches)
    finally:
        _rest()


def _rest() -> None:
    """Forgets the importers of archives, which the next import makes again; the collector skips what is loaded."""
    global _modules_at_rest
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimport.zipimporter):
            del sys.path_importer_cache[path]
    if len(sys.modules) != _modules_at_rest:
        _modules_at_rest = len(sys.modules)
        gc.collect()
        gc.freeze()
