"""Rules of what the driver writes into a run, on real stores."""

from __future__ import annotations

import time

import pytest

from lakelens.errors import TrackingError
from lakelens.tracking.heartbeat import HEARTBEAT_TAG, Heartbeat
from lakelens.tracking.run_writer import RECORDS_FILE, RecordFile, RunRecord, RunWriter, read_records
from lakelens.tracking.runs import RunReference, open_client, tracked_run

pytestmark = pytest.mark.system


@pytest.mark.parametrize(
    ("is_silent", "words"),
    [(True, "read timeout=1"), (False, "write into run {run}")],
    ids=["silent server", "deleted run"],
)
def test_what_a_store_does_not_take_is_raised_at_the_end_and_stays_in_its_file(
    store, silent_server, tmp_path, caplog, monkeypatch, is_silent, words
):
    monkeypatch.setattr("lakelens.tracking.run_writer.FINISH_S", 0.0)
    with tracked_run(store, "refused") as run:
        RecordFile(tmp_path).add(RunRecord({"loss": 1.0}, 1, {"epochs": 2}))
        open_client(store).delete_run(run.run_id)
        written = RunReference(silent_server, "1", "r1", "here") if is_silent else run
        with RunWriter(written, tmp_path) as writer:
            with pytest.raises(
                TrackingError, match=rf"{words.format(run=run.run_id)}.* is in {tmp_path}/{RECORDS_FILE}"
            ):
                writer.finish()
        open_client(store).restore_run(run.run_id)
    assert [record.step for record in read_records(tmp_path)] == [1]
    assert "the training continues, and it is tried again" in caplog.text


def test_a_job_that_fails_has_its_last_records_in_the_run_and_leaves_no_thread_and_no_file(store, tmp_path):
    with tracked_run(store, "failing") as run:
        RecordFile(tmp_path).add(RunRecord({"loss": 0.5}, 7))
        (tmp_path / f".{RECORDS_FILE}.0123").touch()  # as a writer leaves it that is killed
        with pytest.raises(RuntimeError, match="of the body"), RunWriter(run, tmp_path) as writer:
            raise RuntimeError("of the body")
        assert not writer._thread.is_alive()
    assert [point.step for point in open_client(store).get_metric_history(run.run_id, "loss")] == [7]
    assert list(tmp_path.iterdir()) == []


def test_the_writer_renews_the_heartbeat(store, tmp_path, monkeypatch):
    monkeypatch.setattr("lakelens.tracking.run_writer.RENEW_S", 0.2)
    client = open_client(store)
    with tracked_run(store, "beating") as run, RunWriter(run, tmp_path) as writer:
        writer.finish()  # what follows it, such as a registration, may take long too
        first = now = Heartbeat.parse(client.get_run(run.run_id).data.tags[HEARTBEAT_TAG])
        deadline = time.monotonic() + 60
        while now.time == first.time and time.monotonic() < deadline:
            now = Heartbeat.parse(client.get_run(run.run_id).data.tags[HEARTBEAT_TAG])
        assert now.time > first.time
        assert now.lost(time.time()) is None


def test_what_a_store_refused_for_a_while_arrives_later_in_its_order(store, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("lakelens.tracking.run_writer._RETRY_S", 0.1)
    records = RecordFile(tmp_path)
    with tracked_run(store, "refused for a while") as run, RunWriter(run, tmp_path) as writer:
        open_client(store).delete_run(run.run_id)
        records.add(RunRecord({"loss": 1.0}, 1))
        deadline = time.monotonic() + 60
        while "the training continues, and it is tried again" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.05)
        open_client(store).restore_run(run.run_id)
        records.add(RunRecord({"loss": 0.5}, 2))
        writer.finish()
    assert [point.step for point in open_client(store).get_metric_history(run.run_id, "loss")] == [1, 2]
    assert f"the MLflow store answers again; run {run.run_id} has all records" in caplog.text
