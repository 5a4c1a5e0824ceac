"""Rules of trainings in segments: what was interrupted goes on exactly, in processes of its own."""

from __future__ import annotations

import os
import shutil
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coloured_tables import coloured_table

from lakelens.tracking.run_records import read_records
from lakelens.tracking.runs import RunReference
from lakelens.training.checkpoints.checkpoint import Checkpoint, open_checkpoint
from lakelens.training.experiment.trial_driver import run_segment
from lakelens.training.feed.feed import DeltaFeed
from lakelens.training.runner.runner import HorovodRunner
from lakelens.training.segments.checks import PROBE_FILE
from lakelens.training.segments.job import TrainingJob
from lakelens.training.segments.segment import SegmentOutcome, train_segment
from lakelens.training.trials.entrypoint import EntryPoint
from lakelens.training.trials.metrics import Goal

RUN = RunReference("sqlite:////nowhere/mlflow.db", "0", "r1", "driver")
# What the promise of bit-equal results names.
EXACT = {"TF_DETERMINISTIC_OPS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
# 90 rows in batches of 16 are 6 steps an epoch; the last batch is padded.
STEPS, EPOCHS = 6, 4

NOISY = """
    import os
    import random
    import signal
    import time
    from pathlib import Path

    import keras
    import numpy as np
    from lakelens.training.rank import process_context
    from lakelens.training.trials.trial import Trial

    class Accident(keras.callbacks.Callback):
        '''Kills this rank once, or interrupts the driver, where the test says so.'''

        def on_train_batch_end(self, batch, logs=None):
            step = int(self.model.optimizer.iterations)
            once = Path(os.environ.get("KILL_ONCE", "/nowhere"))
            if str(step) == os.environ.get("KILL_AT") and not once.exists():
                once.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if str(step) == os.environ.get("INTERRUPT_AT"):
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

    class Noisy(Trial):
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
            model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
            return model

        def keras_callbacks(self):
            return [
                *([Drawing()] if self.context.size == 1 else []),
                Accident(),
                keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
                keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=2, min_delta=10.0),
                keras.callbacks.EarlyStopping("val_loss", patience=50, restore_best_weights=True),
            ]
"""


@dataclass(frozen=True)
class Place:
    """Where jobs of a module find their table and their Trial."""

    folder: Path

    def job(self, name: str, **changes: Any) -> TrainingJob:
        """Makes a job with a checkpoint folder of its own."""
        table = self.folder / "squares"
        feed = DeltaFeed(table, 0, "train", 1)
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        (folder / PROBE_FILE).write_text(RUN.run_id)
        settings = {
            "entrypoint": EntryPoint.parse(f"{self.folder / 'noisy.py'}:Noisy"),
            "training_feed": feed,
            "validation_feed": DeltaFeed(table, 0, "validation", shuffle=False),
            "hyperparameters": {},
            "class_names": feed.class_names,
            "image_size": feed.stored_size,
            "batch_size": 16,
            "epochs": EPOCHS,
            "seed": 1,
            "goal": Goal.of("val_loss"),
            "patience": None,
            "folder": folder,
            "run": RUN,
        }
        return TrainingJob(**(settings | changes))


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Place:
    folder = tmp_path_factory.mktemp("segments")
    coloured_table(folder / "squares")
    (folder / "noisy.py").write_text(textwrap.dedent(NOISY))
    return Place(folder)


def in_a_new_process(
    job: TrainingJob, start: str = "", until: int | None = None, ranks: int = 1, restarts: int = 0, **env: str
) -> SegmentOutcome:
    runner = HorovodRunner(np=-ranks, env=EXACT | env)
    begin = open_checkpoint(start) if start else None
    return run_segment(runner, job, start=begin, until=until, max_restarts=restarts)


def history(job: TrainingJob) -> list[dict[str, float]]:
    measured = [record for record in read_records(job.folder) if record.metrics]
    assert [record.step for record in measured] == list(range(1, EPOCHS + 1))
    return [{name: value for name, value in each.metrics.items() if name != "epoch_seconds"} for each in measured]


def assert_equal_to_the_bit(one: Checkpoint, other: Checkpoint) -> None:
    models = [checkpoint.load_model(compile=True) for checkpoint in (one, other)]
    first, second = ([np.asarray(v) for v in [*model.variables, *model.optimizer.variables]] for model in models)
    assert len(first) > 20
    for mine, theirs in zip(first, second, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert one.state() == other.state()
    mine, theirs = one.arrays(), other.arrays()
    assert mine.keys() == theirs.keys()
    for name in mine:
        np.testing.assert_array_equal(mine[name], theirs[name])


@dataclass(frozen=True)
class Whole:
    """A training that nothing has interrupted."""

    history: list[dict[str, float]]
    last: Checkpoint
    outcome: SegmentOutcome


@pytest.fixture(scope="module")
def whole(place) -> Whole:
    job = place.job("whole")
    outcome = in_a_new_process(job)
    return Whole(history(job), open_checkpoint(outcome.last), outcome)


@pytest.mark.tensorflow
@pytest.mark.parametrize("cut", [2 * STEPS, 2 * STEPS + 4], ids=["between epochs", "within an epoch"])
def test_a_training_that_goes_on_in_another_process_is_that_of_one_to_the_bit(place, whole, cut):
    job = place.job(f"cut at {cut}")
    paused = in_a_new_process(job, until=cut)
    assert (paused.reason, paused.step) == ("completed", cut)
    outcome = in_a_new_process(job, paused.last)
    assert (outcome.step, outcome.epochs) == (EPOCHS * STEPS, EPOCHS)
    assert history(job) == whole.history
    assert outcome.metrics == whole.outcome.metrics
    assert_equal_to_the_bit(open_checkpoint(outcome.last), whole.last)


@pytest.mark.tensorflow
def test_a_training_whose_rank_is_killed_goes_on_from_its_last_checkpoint_to_the_same_result(place, whole):
    job = place.job("killed", checkpoint_period=4)
    # Within the fourth epoch; the last checkpoint is that of step 20, in the same epoch.
    outcome = in_a_new_process(job, restarts=1, KILL_AT="22", KILL_ONCE=str(place.folder / "killed once"))
    assert (place.folder / "killed once").exists()
    assert history(job) == whole.history
    assert_equal_to_the_bit(open_checkpoint(outcome.last), whole.last)


@pytest.mark.tensorflow
def test_the_first_interrupt_pauses_with_a_checkpoint_that_the_training_goes_on_from(place, whole):
    job = place.job("interrupted")
    paused = in_a_new_process(job, INTERRUPT_AT="9", DRIVER=str(os.getpid()))
    assert (paused.reason, paused.step) == ("paused", 9)
    outcome = in_a_new_process(job, paused.last)
    assert (outcome.reason, outcome.step) == ("completed", EPOCHS * STEPS)
    assert history(job) == whole.history
    assert_equal_to_the_bit(open_checkpoint(outcome.last), whole.last)


@pytest.mark.long
@pytest.mark.horovod
def test_two_ranks_that_go_on_within_an_epoch_are_those_of_one_training_to_the_bit(place):
    job = place.job("two ranks")
    uninterrupted = in_a_new_process(job, ranks=2)
    cut = place.job("two ranks, cut")
    paused = in_a_new_process(cut, until=STEPS + 3, ranks=2)
    outcome = in_a_new_process(cut, paused.last, ranks=2)
    assert history(cut) == history(job)
    assert_equal_to_the_bit(open_checkpoint(outcome.last), open_checkpoint(uninterrupted.last))


@pytest.mark.tensorflow
def test_a_checkpoint_of_another_model_is_refused(place, whole):
    changed = place.job("another model")
    other = place.folder / "other.py"
    other.write_text(textwrap.dedent(NOISY).replace("Conv2D(4", "Conv2D(5"))
    outcome = train_segment(
        replace(changed, entrypoint=EntryPoint.parse(f"{other}:Noisy")), start=Checkpoint(whole.last.path, "", {})
    )
    assert outcome.failure is not None
    assert outcome.failure[0] == "CheckpointError"
    assert "of another model than the Trial builds now" in outcome.failure[1]


@pytest.mark.tensorflow
def test_a_checkpoint_that_was_changed_is_refused(place, whole):
    copy = place.folder / "changed"
    shutil.copytree(whole.last.path, copy)
    (copy / "state.json").write_text((copy / "state.json").read_text().replace('"step":24', '"step":23'))
    outcome = train_segment(place.job("changed checkpoint"), start=Checkpoint(copy, "", {}))
    assert outcome.failure is not None
    assert "it was changed after it was written" in outcome.failure[1]
