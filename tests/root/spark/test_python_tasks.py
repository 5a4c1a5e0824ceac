"""Python tasks leave their worker ready for the next one."""

from __future__ import annotations

import gc
import os
import sys
import zipimport

import pytest

from lakelens.spark.workers import map_in_arrow

pytestmark = pytest.mark.spark


def test_a_worker_reads_no_archive_and_walks_over_no_loaded_module_between_two_tasks(spark):
    def state(batches):
        import pyarrow as pa

        importers = sum(isinstance(one, zipimport.zipimporter) for one in sys.path_importer_cache.values())
        for batch in batches:
            rows = [{"worker": os.getpid(), "importers": importers, "frozen": gc.get_freeze_count()}] * batch.num_rows
            yield pa.RecordBatch.from_pylist(rows)

    def rows():
        frame = map_in_arrow(spark.range(0, 8, 1, 8), state, "worker LONG, importers LONG, frozen LONG")
        return {row.worker: row for row in frame.collect()}

    first, second = rows(), rows()
    again = first.keys() & second.keys()
    assert again
    for worker in again:
        assert second[worker].importers == 0
        assert second[worker].frozen > 10_000
