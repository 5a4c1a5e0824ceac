"""Rules of what ends a training from outside: another terminal, signals, a killed driver, a full disk.

The driver is the command in a process of its own; the ranks are real.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from child_processes import ending_with_this_process
from coloured_tables import coloured_table
from mlflow_stores import put_store
from segment_jobs import EXACT, assert_equal_to_the_bit

from lakelens.errors import RankFailedError
from lakelens.jobs.cli import main
from lakelens.pausing import pausing
from lakelens.tracking.run_listing import show_run
from lakelens.tracking.runs import open_client
from lakelens.training.checkpoints.checkpoint import Checkpoint, list_checkpoints
from lakelens.training.experiment.train import train
from lakelens.training.runner.runner import HorovodRunner

# 90 rows in batches of 16 are 6 steps an epoch.
STEPS = 18
PATIENCE_S = 240.0

TRIAL = """
    import os
    import resource
    import time
    from pathlib import Path

    import keras
    from lakelens.training.rank import process_context
    from lakelens.training.trials.keras_trial import KerasTrial

    class Hold(keras.callbacks.Callback):
        '''Says that a step is reached; from there on does what the test's files say.'''

        def __init__(self, rank):
            super().__init__()
            self.rank = rank

        def on_train_batch_end(self, batch, logs=None):
            place = Path(os.environ["PLACE"])
            if int(self.model.optimizer.iterations) < int(os.environ.get("HOLD_AT", "1000")):
                return
            if self.rank == 0:
                (place / "pid.new").write_text(str(os.getpid()))
                (place / "pid.new").rename(place / "reached")
            while (place / "stuck").exists():
                time.sleep(0.05)
            while (place / "until paused").exists() and not process_context.told().get("pause"):
                time.sleep(0.05)
            if (place / "slow").exists():
                time.sleep(0.2)

    class FullDisk(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    class Noisy(KerasTrial):
        def build_model(self):
            model = keras.Sequential([
                keras.Input((*self.context.image_size, 3)),
                keras.layers.Rescaling(1 / 255),
                keras.layers.Conv2D(4, 3, activation="relu"),
                keras.layers.GlobalAveragePooling2D(),
                keras.layers.Dropout(0.3, seed=self.context.seed),
                keras.layers.Dense(self.context.num_classes, activation="softmax"),
            ])
            model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
            return model

        def keras_callbacks(self):
            return [FullDisk()] if os.environ.get("FULL_DISK") else [Hold(self.context.rank)]
"""


@dataclass(frozen=True)
class Place:
    """A folder with a table, a Trial, a store and experiments."""

    folder: Path

    @property
    def store(self) -> str:
        return f"sqlite:///{self.folder}/mlflow.db"

    def keys(self, name: str, **changes: Any) -> dict[str, Any]:
        (self.folder / name).mkdir()
        env = {**EXACT, "PLACE": str(self.folder / name), **changes.pop("env", {})}
        keys = {
            "name": name,
            "entrypoint": f"{self.folder / 'noisy.py'}:Noisy",
            "data": {"table": str(self.folder / "squares")},
            "hyperparameters": {"global_batch_size": 16},
            "searcher": {"max_length": {"epochs": 3}},
            "min_checkpoint_period": {"batches": 4},
            "resources": {"slots_per_trial": changes.pop("ranks", 1), "env": env},
            "checkpoint_storage": {"path": str(self.folder / name / "checkpoints")},
            "tracking": {"uri": self.store},
        }
        return keys | changes

    def state(self, run_id: str) -> str:
        return open_client(self.store).get_run(run_id).info.status

    def history(self, run_id: str) -> list[tuple[int, float]]:
        points = open_client(self.store).get_metric_history(run_id, "val_loss")
        return [(point.step, point.value) for point in points]

    def last(self, name: str) -> Checkpoint:
        (folder,) = [path for path in (self.folder / name / "checkpoints").iterdir() if path.is_dir()]
        return list_checkpoints(folder)[-1]


@dataclass
class Driver:
    """`lakelens train experiment.yaml` in a process group of its own, as a terminal starts it."""

    place: Path
    process: subprocess.Popen[str]
    errors: Path

    def wait_for(self, what: Path | str) -> str:
        """Waits for a file, or for words on stderr."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if isinstance(what, Path):
                if what.exists():
                    return what.read_text()
            elif what in self.errors.read_text():
                return what
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"{what} has not come:\n{self.errors.read_text()}")

    def reached(self) -> int:
        """Waits until the training is where it holds; gives rank 0's process."""
        return int(self.wait_for(self.place / "reached"))

    def run_id(self) -> str:
        (folder,) = [path for path in (self.place / "checkpoints").iterdir() if path.is_dir()]
        return folder.name

    def interrupt(self, number: signal.Signals) -> None:
        """Signals the whole group, ranks included, as Ctrl-C in a terminal does."""
        os.killpg(self.process.pid, number)

    def end(self) -> tuple[int, dict[str, Any]]:
        """Waits for the end; gives exit code and result."""
        out, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, json.loads(out.splitlines()[-1])


@contextlib.contextmanager
def terminal(errors: Path) -> Iterator[int]:
    """Gives a terminal for a process's stderr; what is written there comes into a file."""
    ours, theirs = pty.openpty()

    def copy() -> None:
        with errors.open("wb", buffering=0) as file, contextlib.suppress(OSError):  # as the last writer has gone
            while said := os.read(ours, 4096):
                file.write(said)
        os.close(ours)

    errors.touch()
    threading.Thread(target=copy, daemon=True).start()
    try:
        yield theirs
    finally:
        os.close(theirs)


@contextlib.contextmanager
def driver_of(place: Place, name: str, *arguments: str, in_terminal: bool = False, **changes: Any) -> Iterator[Driver]:
    file = place.folder / f"{name}.yaml"
    if not arguments:
        file.write_text(json.dumps(place.keys(name, **changes)))
        arguments = (str(file),)
    errors = place.folder / name / "stderr"
    with terminal(errors) if in_terminal else errors.open("w") as stderr:
        process = subprocess.Popen(
            ending_with_this_process([sys.executable, "-m", "lakelens.jobs.cli", "train", *arguments]),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
            cwd=place.folder,
        )
    try:
        yield Driver(place.folder / name, process, errors)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.communicate()


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


def last_line(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Place:
    folder = tmp_path_factory.mktemp("interruptions")
    coloured_table(folder / "squares")
    put_store(folder)
    (folder / "noisy.py").write_text(textwrap.dedent(TRIAL))
    return Place(folder)


@pytest.mark.horovod
@pytest.mark.long
def test_two_ranks_pause_when_another_terminal_asks_and_go_on_when_it_says_so(place, capsys):
    with driver_of(place, "asked", ranks=2, env={"HOLD_AT": "7"}) as driver:
        (driver.place / "until paused").touch()
        driver.reached()
        run = driver.run_id()
        arguments = [run, "--tracking-uri", place.store]
        assert main(["runs", "pause", *arguments, "--wait-s", str(PATIENCE_S)]) == 0
        assert last_line(capsys)["state"] == "PAUSED"
        code, said = driver.end()
    assert (code, said["error"]) == (130, "TrainingPaused")
    assert f"lakelens train --resume {run}" in said["message"]
    paused = place.last("asked")
    assert 7 <= paused.metadata["step"] < STEPS
    (driver.place / "until paused").unlink()
    assert main(["train", "--resume", *arguments]) == 0
    result = last_line(capsys)
    assert (result["run_id"], result["ranks"], result["epochs"]) == (run, 2, 3)
    assert [step for step, _ in place.history(run)] == [1, 2, 3]
    assert main(["runs", "pause", *arguments]) == 2
    assert f"run {run} is FINISHED; only a running training can pause" in last_line(capsys)["message"]


@pytest.mark.tensorflow
def test_a_training_that_another_terminal_kills_ends_at_once_with_its_ranks(place, capsys):
    with driver_of(place, "killed", env={"HOLD_AT": "7"}) as driver:
        (driver.place / "stuck").touch()
        rank = driver.reached()
        run = driver.run_id()
        assert main(["runs", "kill", run, "--tracking-uri", place.store, "--wait-s", str(PATIENCE_S)]) == 0
        assert last_line(capsys)["state"] == "KILLED"
        code, said = driver.end()
    assert (code, said["error"]) == (130, "TrainingKilled")
    assert f"run {run} was killed by another process" in said["message"]
    wait_until_gone(rank)
    assert place.last("killed").metadata["step"] == 6


@pytest.mark.unit
@pytest.mark.parametrize(("notice", "shown"), [("pausing", "lakelens: pausing; interrupt again"), (None, "")])
def test_a_terminal_shows_that_a_call_pauses_only_if_it_can(notice, shown, monkeypatch):
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    heard: list[int] = []
    with pausing(heard.append, notice):
        os.kill(os.getpid(), signal.SIGINT)
    assert heard == [signal.SIGINT]
    assert shown in terminal.getvalue()
    assert bool(terminal.getvalue()) == bool(shown)


@pytest.mark.unit
def test_only_ranks_of_a_connect_session_cannot_pause():
    session = type("Session", (), {"__module__": "pyspark.sql.connect.session"})()
    assert HorovodRunner(np=-1, spark=session).can_pause
    assert HorovodRunner(np=1, spark=object()).can_pause
    assert not HorovodRunner(np=1, spark=session).can_pause


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.long
@pytest.mark.tensorflow
def test_a_second_interrupt_ends_a_training_at_once_that_cannot_pause(place):
    with driver_of(place, "interrupted twice", in_terminal=True, env={"HOLD_AT": "7"}) as driver:
        (driver.place / "stuck").touch()
        rank = driver.reached()
        driver.interrupt(signal.SIGINT)
        driver.wait_for("pausing after a checkpoint; interrupt again to end at once")
        driver.interrupt(signal.SIGINT)
        code, said = driver.end()
    assert (code, said["error"]) == (130, "KeyboardInterrupt")
    wait_until_gone(rank)
    assert place.state(driver.run_id()) == "KILLED"
    assert place.last("interrupted twice").metadata["step"] == 6


@pytest.mark.long
@pytest.mark.tensorflow
def test_sigterm_pauses_a_training(place):
    with driver_of(place, "terminated", env={"HOLD_AT": "7"}) as driver:
        (driver.place / "until paused").touch()
        driver.reached()
        driver.interrupt(signal.SIGTERM)
        code, said = driver.end()
    assert (code, said["error"]) == (143, "TrainingPaused")
    lines = driver.errors.read_text().splitlines()  # with a line of progress every 30 s of a slow machine
    assert len([line for line in lines if not re.search(r"[\d,]+ of [\d,]+ images", line)]) == 1, lines
    assert show_run(driver.run_id(), place.store).summary.state == "PAUSED"
    assert place.last("terminated").metadata["step"] >= 7


@pytest.mark.tensorflow
def test_a_disk_that_is_full_fails_the_run_and_leaves_the_last_whole_checkpoint(place):
    with pytest.raises(RankFailedError, match=r"checkpoint .* cannot be written to .*; complete checkpoints") as found:
        train(place.keys("full", env={"FULL_DISK": "1"}, checkpoint_policy="all"))
    assert "\n" not in str(found.value)
    (folder,) = (place.folder / "full" / "checkpoints").iterdir()
    assert place.state(folder.name) == "FAILED"
    assert "cannot be written" in open_client(place.store).get_run(folder.name).data.tags["lakelens.failure"]
    assert [path.name for path in folder.iterdir()] == [place.last("full").name]
    assert place.last("full").metadata["step"] == 6


@pytest.mark.long
@pytest.mark.horovod
@pytest.mark.timeout(900)
def test_two_ranks_whose_driver_and_whose_rank_are_killed_come_to_the_same_result(place, capsys):
    uninterrupted = train(place.keys("whole of 2", ranks=2))
    # Each step takes a fifth of a second, so that the kills fall at different steps.
    with driver_of(place, "killed twice", env={"HOLD_AT": "0"}, max_restarts=1, ranks=2) as driver:
        (driver.place / "slow").touch()
        rank = driver.reached()
        run = driver.run_id()
        time.sleep(1)
        driver.process.kill()
        wait_until_gone(rank)
    (driver.place / "reached").unlink()
    assert place.state(run) == "RUNNING"
    assert main(["runs", "--tracking-uri", place.store]) == 0
    (listed,) = [entry for entry in last_line(capsys)["runs"] if entry["run_id"] == run]
    assert (listed["state"], "which kept this run, is gone" in listed["failure"]) == ("FAILED", True)
    with driver_of(place, "killed twice", "--resume", run, "--tracking-uri", place.store) as driver:
        os.kill(driver.reached(), signal.SIGKILL)
        assert driver.process.wait(PATIENCE_S) == 0
    assert place.state(run) == "FINISHED"
    assert place.history(run) == place.history(uninterrupted.run_id)
    assert_equal_to_the_bit(place.last("killed twice"), place.last("whole of 2"))
