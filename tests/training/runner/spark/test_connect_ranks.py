"""Ranks on the executors of a Spark Connect server, which the client neither listens to nor talks to."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
from coloured_tables import add_rows, coloured_table
from mlflow_stores import put_store
from tiny_trial import tiny_trial

from lakelens.errors import (
    ClusterConfigurationError,
    LaunchError,
    NotEnoughSlotsError,
    RankFailedError,
    UnpicklableFunctionError,
)
from lakelens.spark.port import settings_of
from lakelens.tracking.runs import FAILURE_TAG, open_client
from lakelens.training.checkpoints.checkpoint import list_checkpoints
from lakelens.training.experiment.train import resume, train
from lakelens.training.feed.feed import DeltaFeed
from lakelens.training.runner.spark.connect_ranks import check_sent_bytes

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.sessions("connect")]

DYING = """
    import os
    import signal
    from pathlib import Path

    class DiesOnce(keras.callbacks.Callback):
        def __init__(self, rank, mark):
            super().__init__()
            self.rank, self.mark = rank, Path(mark)

        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1 and self.rank == 1 and not self.mark.exists():
                self.mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    class Dying(Tiny):
        def keras_callbacks(self):
            return [DiesOnce(self.context.rank, self.context.get_hparam("mark"))]
"""


def test_rank_zeros_value_the_messages_and_the_last_lines_come_at_the_end(runner, capfd):
    def main(x):
        import numpy as np

        from lakelens.training.rank.process_context import current, log_to_driver

        print(f"line of {current().rank}")
        log_to_driver(f"{current().rank} of {current().size}")
        return x + 1, np.full(20 << 20, 7, np.uint8)

    value, array = runner(driver_log_verbosity="all").run(main, x=41)
    assert (value, array.nbytes, set(array[:: 1 << 20])) == (42, 20 << 20, {7})
    shown = capfd.readouterr()
    assert sorted(shown.out.splitlines()) == ["0 of 2", "1 of 2", "[0]<stdout> line of 0", "[1]<stdout> line of 1"]
    assert "lines and messages of ranks on a Spark Connect session are shown when they have ended" in shown.err


@pytest.mark.horovod
def test_a_function_that_does_not_fit_into_a_message_is_refused_before_the_start(runner):
    said = r"arguments are 127\.5 MiB, and this Spark Connect server takes messages of 128\.0 MiB \(spark\.connect"
    with pytest.raises(UnpicklableFunctionError, match=said):
        runner(1).run(len, obj=bytes(255 << 19))


def test_the_limit_of_a_server_is_read_as_spark_writes_it():
    for limit, bytes_ in (("64m", 64 << 20), ("1g", 1 << 30), ("134217728", 128 << 20), ("200 MB", 200 << 20)):
        check_sent_bytes("job", bytes_ - (1 << 20), limit)
        with pytest.raises(UnpicklableFunctionError, match=rf"messages of {bytes_ >> 20}\.0 MiB"):
            check_sent_bytes("job", bytes_ - (1 << 20) + 1, limit)


def test_zero_is_every_slot_and_its_ranks_sum_through_horovod_and_decide_without_answers(runner):
    def main():
        import numpy as np

        import lakelens.hvd as hvd
        from lakelens.training.rank import process_context

        hvd.init()
        total = float(hvd.allreduce(np.float32(hvd.rank() + 1), op=hvd.Sum))
        return hvd.size(), total, process_context.ask({"next": None})

    assert runner(np=0).run(main) == (2, 3.0, {})


def test_zero_is_refused_where_the_server_does_not_tell_its_slots(spark, runner):
    with (
        settings_of(spark, {"spark.task.resource.gpu.amount": "1"}),
        pytest.raises(ClusterConfigurationError, match=r"with spark\.task\.resource\.gpu\.amount=1 .* give the number"),
    ):
        runner(np=0).run(print)


def test_a_task_that_hangs_before_it_reports_ends_the_job(spark, runner):
    def worker(batches):
        import os
        import time

        import pyarrow as pa

        time.sleep(2)  # each task has its own worker
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"pid": [os.getpid()]})

    workers = [row.pid for row in spark.range(0, 2, 1, 2).mapInArrow(worker, "pid LONG", barrier=True).collect()]
    os.kill(workers[1], signal.SIGSTOP)  # the next task that gets it runs nothing
    try:
        with pytest.raises(LaunchError, match="a task never reported to the others within 6 s; an executor") as caught:
            runner(slots_wait_s=2, stall_timeout_s=4).run(print)
    finally:
        os.kill(workers[1], signal.SIGKILL)
    assert not isinstance(caught.value, RankFailedError)  # which would be started again


def test_slots_that_another_job_holds_are_waited_for_with_a_bound(spark, runner):
    def hold(batches):
        import time

        yield from batches
        time.sleep(600)

    def occupy():
        spark.addTag("holder")
        with pytest.raises(Exception, match="OPERATION_CANCELED"):
            spark.range(0, 1, 1, 1).mapInArrow(hold, "id LONG").collect()

    thread = threading.Thread(target=occupy)
    thread.start()
    time.sleep(3)
    try:
        with pytest.raises(
            NotEnoughSlotsError, match=r"none of 2 tasks could start within 1 s.* the cluster has 2, and"
        ):
            runner(slots_wait_s=1).run(print)
    finally:
        spark.interruptTag("holder")
        thread.join(timeout=60)


def test_a_server_that_reports_no_progress_is_not_taken_for_one_without_slots(spark, runner, capfd):
    def main():
        import time

        time.sleep(8)
        return "trained"

    with settings_of(spark, {"spark.connect.progress.reportInterval": "-1"}):
        assert runner(slots_wait_s=1).run(main) == "trained"
    assert "this server reports no progress of queries" in capfd.readouterr().err


@pytest.mark.long
@pytest.mark.horovod
@pytest.mark.usefixtures("watch")
def test_a_training_whose_rank_died_resumes_on_the_version_it_has_read(spark, tmp_path):
    table = coloured_table(tmp_path / "squares", train=32, validation=6)
    store = put_store(tmp_path)
    with pytest.raises(RankFailedError, match=r"rank 1 of 2 .* was ended by SIGKILL"):
        train(
            f"{table}@0",
            entrypoint=tiny_trial(tmp_path, "Dying", DYING),
            strategy="horovod_cluster",
            slots_per_trial=2,
            epochs=2,
            global_batch_size=16,
            hyperparameters={"mark": str(tmp_path / "mark")},
            tracking_uri=store,
            config={"checkpoint_storage": {"path": str(tmp_path / "checkpoints")}},
            spark=spark,
        )
    client = open_client(store)
    (run,) = client.search_runs([one.experiment_id for one in client.search_experiments()])
    assert (run.info.status, "SIGKILL" in run.data.tags[FAILURE_TAG]) == ("FAILED", True)
    assert len(list_checkpoints(tmp_path / "checkpoints" / run.info.run_id)) == 1
    add_rows(table, 32, 16, "train")
    result = resume(run.info.run_id, tracking_uri=store, spark=spark)
    assert (result.run_id, result.version, result.epochs, result.ranks) == (run.info.run_id, 0, 2, 2)
    assert DeltaFeed(table, 0, "train").rows == 32
    history = client.get_metric_history(result.run_id, "loss")
    assert [point.step for point in history] == [1, 2]
    assert client.get_run(result.run_id).info.status == "FINISHED"
