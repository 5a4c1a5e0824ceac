"""Rules of a training whose MLflow server accepts connections and does not answer."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from child_processes import ending_with_this_process
from mlflow_stores import put_store
from tiny_trial import tiny_trial

from lakelens.errors import TrackingError
from lakelens.tracking.run_writer import RECORDS_FILE, read_records
from lakelens.tracking.runs import open_client
from lakelens.training.checkpoints.checkpoint import open_checkpoint
from lakelens.training.experiment.train import train

pytestmark = [pytest.mark.horovod, pytest.mark.long]

# The server is a group of processes; the rank stops it when the first epoch has been trained.
STOPPING = """
    import os, signal, time

    class Stopping(Tiny):
        def keras_callbacks(self):
            server, silent_s = self.context.get_hparam("server"), self.context.get_hparam("silent_s", 0.0)

            def at_the_end(epoch, logs):
                if epoch == 0:
                    os.killpg(server, signal.SIGSTOP)
                elif silent_s:
                    time.sleep(silent_s)
                    os.killpg(server, signal.SIGCONT)

            return [keras.callbacks.LambdaCallback(on_epoch_end=at_the_end)]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[tuple[int, str]]:
    """An MLflow server: its process group and its URI."""
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    stores = ("--backend-store-uri", put_store(folder), "--artifacts-destination", str(folder / "files"))
    command = [sys.executable, "-m", "mlflow", "server", *stores, "--port", str(port), "--workers", "1"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(ending_with_this_process(command), stdout=log, stderr=log, start_new_session=True)
    try:
        uri = f"http://127.0.0.1:{port}"
        while True:
            assert process.poll() is None, (folder / "log").read_text()
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                connection.request("GET", "/health")
                if connection.getresponse().status == http.HTTPStatus.OK:
                    break
            time.sleep(0.2)
        yield process.pid, uri
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def settings(server, tmp_path, monkeypatch) -> Iterator[dict[str, Any]]:
    """A short training that is recorded in the server, with short limits; the server answers again afterwards."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "8")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr("lakelens.tracking.run_writer.FINISH_S", 6.0)
    monkeypatch.setattr("lakelens.tracking.run_writer._RETRY_S", 1.0)
    group, uri = server
    yield {
        "entrypoint": tiny_trial(tmp_path, "Stopping", STOPPING),
        "hyperparameters": {"server": group, "learning_rate": -0.1},  # the first epoch is the best one
        "epochs": 2,
        "global_batch_size": 32,
        "tracking_uri": uri,
        "config": {
            "tracking": {"experiment": tmp_path.name},
            "checkpoint_storage": {"path": str(tmp_path / "checkpoints")},
        },
    }
    os.killpg(group, signal.SIGCONT)


def test_what_a_server_missed_while_it_did_not_answer_arrives_later(server, settings, table, caplog):
    settings["hyperparameters"] |= {"silent_s": 20.0}
    result = train(table, **settings)
    client = open_client(server[1])
    run = client.get_run(result.run_id)
    assert run.info.status == "FINISHED"
    history = client.get_metric_history(result.run_id, "val_loss")
    assert [point.step for point in history] == [1, 2]
    assert run.data.tags["lakelens.checkpoint_digest"] == result.digest
    assert "the training continues, and it is tried again" in caplog.text
    assert f"the MLflow store answers again; run {result.run_id} has all records" in caplog.text


def test_a_server_that_never_answers_again_is_an_error_that_names_checkpoint_and_records(
    server, settings, table, tmp_path
):
    with pytest.raises(TrackingError, match="did not let us write into run") as caught:
        train(table, **settings)
    (folder,) = (tmp_path / "checkpoints").iterdir()
    checkpoint, _last = sorted(folder.glob("epoch-*"))
    assert f"What the run lacks is in {folder / RECORDS_FILE}." in str(caught.value)
    assert f"its best checkpoint is {checkpoint}" in str(caught.value)
    assert open_checkpoint(checkpoint).metadata["run_id"] == folder.name
    assert [record.step for record in read_records(folder)] == [0, 1, 2]
