"""Jobs of ranks in processes of their own, for trials in which everything draws noise or counts."""

from __future__ import annotations

import io
import textwrap
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from coloured_tables import coloured_table

from lakelens.tracking.run_writer import read_records
from lakelens.tracking.runs import RunReference
from lakelens.training.checkpoints.checkpoint import Checkpoint, open_checkpoint
from lakelens.training.configuration.experiment import ExperimentConfig
from lakelens.training.experiment.trial_driver import run_segment
from lakelens.training.feed.feed import DeltaFeed
from lakelens.training.runner.runner import HorovodRunner
from lakelens.training.segments.checks import PROBE_FILE
from lakelens.training.segments.job import TrainingJob
from lakelens.training.segments.outcome import SegmentOutcome
from lakelens.training.trials.entrypoint import EntryPoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUN = RunReference("sqlite:////nowhere/mlflow.db", "0", "r1", "driver")  # a rank has nothing to do with the store
# What the promise of bit-equal results names.
EXACT = {"TF_DETERMINISTIC_OPS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
# 90 rows in batches of 16 are 6 steps an epoch; the last batch is shorter.
STEPS, EPOCHS = 6, 4

NOISY = """
    import os
    import random
    import signal
    import time
    from pathlib import Path

    import keras
    import numpy as np
    import lakelens.hvd as hvd
    from lakelens.training.rank import process_context
    from lakelens.training.trials.keras_trial import KerasTrial

    class Accident(keras.callbacks.Callback):
        '''Kills this rank once, or interrupts the driver, where the test says so.'''

        def on_train_end(self, logs=None):
            if "ATTEMPT" in os.environ:
                Path(os.environ["ATTEMPT"]).write_text(str(hvd.attempt()))

        def on_train_batch_end(self, batch, logs=None):
            step = int(self.model.optimizer.iterations.numpy())
            once = Path(os.environ.get("KILL_ONCE", "/nowhere"))
            if str(step) == os.environ.get("KILL_AT") and not once.exists():
                once.touch()
                assert hvd.attempt() == 0
                os.kill(os.getpid(), signal.SIGKILL)
            if str(step) == os.environ.get("INTERRUPT_AT"):
                if process_context.current().rank == 0:  # a second interrupt would end the training at once
                    os.kill(int(os.environ["DRIVER"]), signal.SIGINT)
                while not process_context.told().get("pause"):
                    time.sleep(0.01)

    class Drawing(keras.callbacks.Callback):
        '''Makes the result depend on Python's and NumPy's random numbers, which each rank has of its own.'''

        def on_train_begin(self, logs=None):
            self.drawn = 1.0

        def on_epoch_end(self, epoch, logs=None):
            self.drawn *= 0.9 + 0.1 * random.random() * float(np.random.random())
            bias = self.model.layers[-1].bias
            bias.assign(bias * self.drawn)

    class Noisy(KerasTrial):
        '''Everything that draws or counts: augmentation, dropout, Adam, batch normalization, Keras' callbacks.'''

        def build_model(self):
            model = keras.Sequential([
                keras.Input((*self.context.image_size, 3)),
                keras.layers.Rescaling(1 / 255),
                keras.layers.RandomTranslation(0.1, 0.1, seed=self.context.seed),
                keras.layers.Conv2D(4, 3, activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.GlobalAveragePooling2D(),
                keras.layers.Dropout(0.3, seed=self.context.seed),
                keras.layers.Dense(self.context.num_classes, activation="softmax"),
            ])
            averaged = {"use_ema": "SWAP" in os.environ, "ema_momentum": 0.8}
            optimizer = keras.optimizers.Adam(0.01, **averaged)
            model.compile(optimizer, "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
            return model

        def keras_callbacks(self):
            return [
                *([Drawing()] if self.context.size == 1 else []),
                *([keras.callbacks.SwapEMAWeights(os.environ["SWAP"] == "epochs")] if "SWAP" in os.environ else []),
                Accident(),
                keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
                keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=2, min_delta=10.0),
                keras.callbacks.EarlyStopping("val_loss", patience=50, restore_best_weights=True),
            ]
"""


_FIELDS = ("training_feed", "validation_feed", "replicas", "folder")


def job_in(folder: Path, table: Path, entrypoint: EntryPoint, /, **changes: Any) -> TrainingJob:
    """Makes a job on version 0 of a table whose checkpoints lie in a folder, as the driver would.

    `changes` are fields of the job, sizes by their short names, or keys of the experiment.
    """
    feed = DeltaFeed(table, 0, "train", 1)
    folder.mkdir(exist_ok=True)
    (folder / PROBE_FILE).write_text(RUN.run_id)
    validation = DeltaFeed(table, 0, "validation", shuffle=False)
    fields = {"training_feed": feed, "validation_feed": validation, "folder": folder}
    fields |= {name: changes.pop(name) for name in _FIELDS if name in changes}
    keys = {
        "entrypoint": entrypoint.name,
        "data": {
            "table": str(table),
            "version": 0,
            "validation_split": None if fields["validation_feed"] is None else "validation",
            "image_size": list(changes.pop("image_size", feed.stored_size)),
            "class_names": list(changes.pop("class_names", feed.class_names)),
        },
        "hyperparameters": {
            "global_batch_size": changes.pop("global_batch_size", 16),
            **changes.pop("hyperparameters", {}),
        },
        "searcher": {"max_length": {"epochs": changes.pop("epochs", 2)}, **changes.pop("searcher", {})},
        "reproducibility": {"experiment_seed": changes.pop("seed", 1)},
    }
    return TrainingJob(config=ExperimentConfig.read(keys | changes), entrypoint=entrypoint, run=RUN, **fields)


@dataclass(frozen=True)
class Place:
    """Where jobs of a module find their table and their Trial."""

    folder: Path

    def job(self, name: str, **changes: Any) -> TrainingJob:
        """Makes a job with a checkpoint folder of its own."""
        entrypoint = EntryPoint.parse(f"{self.folder / 'noisy.py'}:Noisy")
        return job_in(self.folder / name, self.folder / "squares", entrypoint, **({"epochs": EPOCHS} | changes))


def in_a_new_process(
    job: TrainingJob,
    start: str = "",
    until: int | None = None,
    ranks: int = 1,
    restarts: int = 0,
    spark: SparkSession | None = None,
    **env: str,
) -> SegmentOutcome:
    """Trains a segment with ranks on this machine, or as tasks of a session."""
    runner = HorovodRunner(np=-ranks if spark is None else ranks, env=EXACT | env, spark=spark)
    begin = open_checkpoint(start) if start else None
    job = replace(job, config=job.config.model_copy(update={"max_restarts": restarts}))
    return run_segment(runner, job, start=begin, until=until)


def history(job: TrainingJob, first: int = 1) -> list[dict[str, float]]:
    """Reads the metrics of each epoch, those of machine and time excepted, and checks that they begin with `first`."""
    measured = [record for record in read_records(job.folder) if record.metrics]
    assert [record.step for record in measured] == list(range(first, job.schedule.epochs + 1))
    timed = ("epoch_seconds", "images_per_second", "feed_wait_seconds_", "compute_seconds_", "system/")
    return [{name: v for name, v in each.metrics.items() if not name.startswith(timed)} for each in measured]


def assert_equal_to_the_bit(one: Checkpoint, other: Checkpoint) -> None:
    first, second = _stored(one), _stored(other)
    assert len(first) > 10
    assert any(name.startswith("optimizer/") for name in first)
    assert one.state() == other.state()
    for mine, theirs in ((first, second), (one.arrays(), other.arrays())):
        assert mine.keys() == theirs.keys()
        for name in mine:
            np.testing.assert_array_equal(mine[name], theirs[name], name)


def _stored(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """Reads the weights of model and optimizer as they lie in the file."""
    found: dict[str, np.ndarray] = {}

    def add(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = item[()]

    with zipfile.ZipFile(checkpoint.model_path) as archive:
        h5py.File(io.BytesIO(archive.read("model.weights.h5"))).visititems(add)
    return found


def place_in(folder: Path) -> Place:
    """Makes a table and a Trial in a folder."""
    coloured_table(folder / "squares")
    (folder / "noisy.py").write_text(textwrap.dedent(NOISY))
    return Place(folder)
