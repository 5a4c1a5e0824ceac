"""Rules of the table version that a run records, on real stores."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from lakelens.errors import VersionNotFoundError
from lakelens.tracking.datasets import TableVersion, log_table, require_same_files
from lakelens.tracking.runs import open_client, tracked_run

pytestmark = pytest.mark.system


def test_a_recorded_table_version_is_read_back_by_mlflow_itself(store):
    import mlflow

    with tracked_run(store, "dataset") as run:
        log_table(run, TableVersion("s3a://bucket/images/", 0, "d" * 50, {"train": 8, "validation": 2}, "t1"))
    (used,) = open_client(store).get_run(run.run_id).inputs.dataset_inputs
    source = mlflow.data.get_source(used.dataset)
    assert (source.path, source.delta_table_version) == ("s3a://bucket/images/", 0)
    assert (used.dataset.name, used.dataset.source_type) == ("images@0", "delta_table")
    assert json.loads(used.dataset.profile)["num_rows"] == 10


def test_a_version_with_other_files_than_a_run_has_recorded_is_refused(store):
    read = TableVersion("/tables/birds", 3, "d" * 50, {"train": 8}, "t1")
    with tracked_run(store, "dataset") as run, tracked_run(store, "dataset") as other:
        log_table(run, read)
    require_same_files(store, run.run_id, read)
    with pytest.raises(VersionNotFoundError, match=rf"/tables/birds@3 has other files than when run {run.run_id}"):
        require_same_files(store, run.run_id, replace(read, digest="e" * 32))
    require_same_files(store, other.run_id, read)  # it has recorded none


def test_runs_that_record_one_new_table_version_at_once_all_succeed(store):
    def record(number: int) -> None:
        with tracked_run(store, "at once") as run:
            for version in range(4):
                together.wait(60)
                log_table(run, TableVersion("/tables/new", version, f"digest {version}", {"train": 1}, "t1"))

    with tracked_run(store, "at once"):  # the experiment
        together = threading.Barrier(4)
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(record, range(4))) == [None] * 4
