"""Trainings whose driver is a command in a process of its own, held at a step or ended from outside; ranks are real."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from child_processes import ending_with_this_process
from coloured_tables import coloured_table
from leftovers import wait_until
from mlflow_stores import put_store
from segment_jobs import EXACT

from lakelens.tracking.runs import open_client
from lakelens.training.checkpoints.checkpoint import Checkpoint, list_checkpoints

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

        def has_come() -> bool:
            return what.exists() if isinstance(what, Path) else what in self.errors.read_text()

        wait_until(lambda: has_come() or self.process.poll() is not None, PATIENCE_S)
        assert has_come(), f"{what} has not come:\n{self.errors.read_text()}"
        return what.read_text() if isinstance(what, Path) else what

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
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), PATIENCE_S)


def make_place(folder: Path) -> Place:
    coloured_table(folder / "squares")
    put_store(folder)
    (folder / "noisy.py").write_text(textwrap.dedent(TRIAL))
    return Place(folder)
