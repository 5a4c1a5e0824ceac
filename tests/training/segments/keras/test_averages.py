"""A training has the losses and the weights of Keras' `fit`, whatever its optimizer averages and its callbacks swap."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coloured_tables import SIDE, coloured_table
from segment_jobs import job_in

from lakelens.errors import TrialError
from lakelens.tracking.run_writer import read_records
from lakelens.training.checkpoints.checkpoint import Checkpoint, copy_checkpoint, list_checkpoints, open_checkpoint
from lakelens.training.segments.outcome import SegmentOutcome
from lakelens.training.segments.segment import train_segment
from lakelens.training.trials.entrypoint import EntryPoint
from lakelens.training.trials.keras_trial import KerasTrial

pytestmark = pytest.mark.tensorflow

BATCH, STEPS, EPOCHS = 16, 6, 3
KEEP_ALL = {"checkpoint_storage": {"save_trial_best": 20, "save_trial_latest": 20}, "checkpoint_policy": "all"}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return coloured_table(tmp_path_factory.mktemp("data") / "squares", train=BATCH * STEPS, validation=BATCH)


def batches(seed: int, steps: int):
    import tensorflow as tf

    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, BATCH * steps)
    images = random.uniform(0, 1, (BATCH * steps, SIDE, SIDE, 3)).astype(np.float32)
    images[np.arange(len(labels)), 0, 0, labels] += 4
    return tf.data.Dataset.from_tensor_slices((images, labels, np.ones(len(labels), np.float32))).batch(BATCH)


def compiled(optimizer: Callable[[], Any]):
    import keras

    keras.utils.set_random_seed(7)
    layers = [keras.Input((SIDE, SIDE, 3)), keras.layers.Flatten(), keras.layers.Dense(3, activation="softmax")]
    model = keras.Sequential(layers)
    model.compile(optimizer(), "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
    return model


def trial_of(optimizer: Callable[[], Any], callbacks: Callable[[], list[Any]]) -> type[KerasTrial]:
    class Averaged(KerasTrial):
        def build_model(self):
            return compiled(optimizer)

        def keras_callbacks(self):
            return callbacks()

        def build_training_dataset(self):
            return batches(1, STEPS).repeat()

        def build_validation_dataset(self):
            return batches(2, 1)

    return Averaged


def trained(folder, table, trial: type[KerasTrial], start: Checkpoint | None = None, **changes):
    job = job_in(folder, table, EntryPoint.parse(trial), global_batch_size=BATCH, epochs=EPOCHS, **changes)
    outcome = train_segment(job, start)
    outcome.raise_failure()
    return outcome


def fitted(optimizer: Callable[[], Any], callbacks: list[Any]):
    model = compiled(optimizer)
    given = {"validation_data": batches(2, 1), "epochs": EPOCHS, "steps_per_epoch": STEPS}
    return model, model.fit(batches(1, STEPS).repeat(), verbose=0, callbacks=callbacks, **given).history


def losses(folder, name: str) -> list[float]:
    return [record.metrics[name] for record in read_records(folder) if name in record.metrics]


def weights_of(path) -> list[np.ndarray]:
    return open_checkpoint(path).load_model().get_weights()


def sgd(**keys):
    import keras

    return keras.optimizers.SGD(0.05, momentum=0.9, **keys)


def scaled(**keys):
    import keras

    return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01, **keys))


def swapping(on_epoch: bool):
    import keras

    return [keras.callbacks.SwapEMAWeights(swap_on_epoch=on_epoch)]


def scheduled():
    import keras

    return [
        keras.callbacks.ReduceLROnPlateau(patience=0, min_delta=9.0, factor=0.5),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
    ]


AVERAGED = {"use_ema": True, "ema_momentum": 0.8}
CASES = {
    "rates": (sgd, scheduled),
    "averages at the end": (partial(sgd, **AVERAGED), list),
    "averages every four steps": (partial(sgd, **AVERAGED, ema_overwrite_frequency=4), list),
    "swapped for validations": (partial(sgd, **AVERAGED), partial(swapping, False)),
    "swapped for epochs": (partial(sgd, **AVERAGED), partial(swapping, True)),
    "swapped with a loss scale": (partial(scaled, **AVERAGED), partial(swapping, False)),
    "swapped and overwritten": (partial(sgd, **AVERAGED, ema_overwrite_frequency=4), partial(swapping, False)),
    "accumulated and swapped": (partial(sgd, **AVERAGED, gradient_accumulation_steps=2), partial(swapping, False)),
}
EVERY_TWO_STEPS = {**KEEP_ALL, "min_checkpoint_period": {"batches": 2}}


@pytest.fixture(scope="module")
def unbroken(table, tmp_path_factory) -> Callable[[str], tuple[Path, SegmentOutcome]]:
    """Trains a case once; gives the folder and the outcome."""

    @functools.cache
    def train(case: str) -> tuple[Path, SegmentOutcome]:
        folder = tmp_path_factory.mktemp("unbroken")
        return folder, trained(folder, table, trial_of(*CASES[case]), **EVERY_TWO_STEPS)

    return train


@pytest.mark.parametrize("case", CASES)
def test_losses_and_weights_are_those_of_fit_and_each_checkpoint_has_what_was_measured(unbroken, case):
    optimizer, callbacks = CASES[case]
    model, history = fitted(optimizer, callbacks())
    folder, outcome = unbroken(case)
    for name in ("loss", "val_loss", "val_accuracy"):
        assert losses(folder, name) == pytest.approx(history[name], rel=1e-4)
    kept = [each for each in list_checkpoints(folder) if each.metadata["step"] % STEPS == 0]
    final = next((each.path for each in kept if "-averaged" in each.name), outcome.last)
    for ours, theirs in zip(weights_of(final), model.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert len(kept) == EPOCHS + case.startswith("averages")
    for each in kept:
        model.set_weights(weights_of(each.path))
        measured = model.evaluate(batches(2, 1), verbose=0, return_dict=True)
        assert measured["loss"] == pytest.approx(each.metadata["metrics"]["val_loss"], rel=1e-4), each.name


def test_a_training_that_a_callback_stops_has_the_best_weights_of_fit(table, tmp_path):
    """The largest loss counts as the best, so that the training gets worse."""

    def callbacks(folder):
        import keras

        best = {"monitor": "val_loss", "mode": "max"}
        return [
            *swapping(True),
            keras.callbacks.EarlyStopping(**best, patience=1, restore_best_weights=True),
            keras.callbacks.ModelCheckpoint(folder / "best.keras", **best, save_best_only=True),
        ]

    import keras

    optimizer = partial(sgd, **AVERAGED)
    for name in ("fit", "run"):
        (tmp_path / name).mkdir()
    model, history = fitted(optimizer, callbacks(tmp_path / "fit"))
    goal = {"searcher": {"metric": "val_loss", "smaller_is_better": False, "max_length": {"epochs": EPOCHS}}}
    trained(tmp_path / "run", table, trial_of(optimizer, lambda: callbacks(tmp_path / "run")), **goal)
    assert losses(tmp_path / "run", "val_loss") == pytest.approx(history["val_loss"], rel=1e-4)
    assert len(history["val_loss"]) < EPOCHS
    files = [keras.saving.load_model(tmp_path / name / "best.keras").get_weights() for name in ("fit", "run")]
    best = next(each for each in list_checkpoints(tmp_path / "run") if each.metadata["step"] == STEPS)
    for found in (weights_of(best.path), *files):
        for ours, theirs in zip(found, model.get_weights(), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("case", "step"),
    [
        ("averages at the end", STEPS + 2),
        ("swapped for validations", STEPS),
        ("swapped for epochs", STEPS),
        ("swapped for epochs", STEPS + 2),
    ],
)
def test_a_resumed_training_has_the_weights_of_an_unbroken_one(unbroken, table, tmp_path, case, step):
    folder, outcome = unbroken(case)
    start = next(each for each in list_checkpoints(folder) if each.metadata["step"] == step)
    copied = copy_checkpoint(start, tmp_path / "resumed")
    resumed = trained(tmp_path / "resumed", table, trial_of(*CASES[case]), copied, **EVERY_TWO_STEPS)
    for ours, theirs in zip(weights_of(resumed.last), weights_of(outcome.last), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_averages_at_the_end_are_the_result_only_where_they_are_better(unbroken, table, tmp_path):
    worse = {"use_ema": True, "ema_momentum": 0.999}  # of the first steps
    bad = trained(tmp_path, table, trial_of(partial(sgd, **worse), list), **KEEP_ALL)
    for folder, outcome in (unbroken("averages at the end"), (tmp_path, bad)):
        measured = [each.metadata["metrics"] for each in list_checkpoints(folder)]
        assert outcome.metrics["val_loss"] == min(float(each.get("val_loss", "inf")) for each in measured)
        assert outcome.metrics == pytest.approx(open_checkpoint(outcome.checkpoint).metadata["metrics"])
    assert "averaged" not in bad.checkpoint
    assert list_checkpoints(tmp_path)[-1].name == Path(bad.last).name


def test_a_training_whose_averages_are_not_kept_ends_with_its_last_weights(table, tmp_path):
    storage = {"checkpoint_storage": {"save_trial_best": 0, "save_trial_latest": 1}}
    outcome = trained(tmp_path, table, trial_of(partial(sgd, **AVERAGED), list), **storage)
    assert [each.name for each in list_checkpoints(tmp_path)] == [Path(outcome.last).name]
    assert outcome.metrics == pytest.approx(open_checkpoint(outcome.last).metadata["metrics"])


def test_callbacks_hear_of_a_training_what_fit_tells_them(table, tmp_path):
    def hearing(heard: list[str]):
        import keras

        class Hearing(keras.callbacks.Callback):
            def __getattribute__(self, name):
                if name.startswith("on_"):
                    heard.append(name)
                return super().__getattribute__(name)

        return Hearing()

    ours, theirs = [], []
    fitted(sgd, [hearing(theirs)])
    trained(tmp_path, table, trial_of(sgd, lambda: [hearing(ours)]))
    assert "on_test_batch_end" in theirs
    assert ours == theirs


def backup():
    import keras

    return [keras.callbacks.BackupAndRestore("/nowhere")]


@pytest.mark.parametrize(
    ("optimizer", "callbacks", "words"),
    [
        (sgd, backup, r"BackupAndRestore.* continues from its checkpoints"),
        (sgd, partial(swapping, True), r"keras_callbacks has SwapEMAWeights, .* SGD .* use_ema=True"),
        (partial(sgd, **AVERAGED), lambda: swapping(True) * 2, "2 SwapEMAWeights, which undo one another; keep one"),
    ],
)
def test_callbacks_that_cannot_work_are_refused_by_name(table, tmp_path, optimizer, callbacks, words):
    with pytest.raises(TrialError, match=words):
        trained(tmp_path, table, trial_of(optimizer, callbacks))
