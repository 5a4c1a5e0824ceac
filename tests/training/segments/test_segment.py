"""Rules of one rank's work, as the only rank of its world, in this very process."""

from __future__ import annotations

import io
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from coloured_tables import CLASSES, SIDE, coloured_rows, coloured_table
from deltalake import write_deltalake
from PIL import Image
from segment_jobs import job_in

from lakelens.errors import (
    BadRowError,
    CheckpointError,
    FeedError,
    NotFiniteError,
    TrialError,
    VersionFilesMissingError,
)
from lakelens.tracking.run_writer import read_records
from lakelens.training.checkpoints.checkpoint import Checkpoint, list_checkpoints, open_checkpoint
from lakelens.training.feed.feed import DeltaFeed
from lakelens.training.segments.checks import PROBE_FILE
from lakelens.training.segments.outcome import SegmentOutcome
from lakelens.training.segments.segment import train_segment
from lakelens.training.trials.entrypoint import EntryPoint
from lakelens.training.trials.keras_trial import KerasTrial
from lakelens.training.trials.small_cnn import SmallCnn
from lakelens.training.trials.trial import Trial

pytestmark = pytest.mark.tensorflow


class Tiny(KerasTrial):
    """One convolution; learns the coloured squares in a few steps."""

    def layers(self) -> list:
        import keras

        return [
            keras.Input((*self.context.image_size, 3)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(self.context.num_classes, activation="softmax"),
        ]

    def build_model(self):
        import keras

        model = keras.Sequential(self.layers())
        rate = self.context.get_hparam("learning_rate", 0.1)
        model.compile(keras.optimizers.SGD(rate), "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
        return model


def run_in(
    folder: Path, table: Path, trial: type[KerasTrial], /, start: Checkpoint | None = None, **changes
) -> SegmentOutcome:
    """Runs a job of one rank as the driver would, and gives its outcome; raises what has failed."""
    outcome = train_segment(job_in(folder, table, EntryPoint.parse(trial), **changes), start)
    outcome.raise_failure()
    return outcome


@pytest.fixture
def rank(table, tmp_path):
    def run(trial: type[KerasTrial] = Tiny, **changes) -> SegmentOutcome:
        return run_in(tmp_path, table, trial, **changes)

    return run


@pytest.fixture(scope="module")
def usual(table, tmp_path_factory) -> SegmentOutcome:
    """Two epochs of the trial as it is."""
    return run_in(tmp_path_factory.mktemp("usual"), table, Tiny)


def test_a_rank_trains_and_keeps_the_best_epoch(usual, table):
    assert (usual.epochs, usual.ranks) == (2, 1)
    kept = open_checkpoint(usual.checkpoint)
    assert kept.digest == usual.digest
    assert [checkpoint.digest for checkpoint in list_checkpoints(Path(usual.checkpoint).parent)] == [kept.digest]
    told = kept.metadata
    assert (told["table"], told["version"], told["epoch"]) == (str(table), 0, usual.best_epoch)
    assert told["labels"] == {"0": "blue", "1": "green", "2": "red"}
    assert told["input"] == {"height": SIDE, "width": SIDE, "channels": 3}
    assert told["hyperparameters"] == {"learning_rate": 0.1}
    assert told["metrics"] == pytest.approx(usual.metrics)
    assert (told["backend"], told["task"]) == ("keras", {"name": "classification", "values": "probabilities"})
    state, feed = kept.state(), DeltaFeed(table, 0, "train", 1)
    assert state["epoch"] == told["epoch"]
    assert state["position"] == feed.position(state["epoch"] * feed.steps_per_epoch(16), 16)


def test_an_initial_validation_is_recorded_and_changes_nothing_after_it(rank, usual, tmp_path):
    storage = {"save_trial_best": 3, "save_trial_latest": 3}
    rank(perform_initial_validation=True, checkpoint_storage=storage)
    before, *after = [record for record in read_records(tmp_path) if record.metrics]
    assert [record.step for record in (before, *after)] == [0, 1, 2]
    assert {"val_loss", "val_accuracy"} <= before.metrics.keys()
    assert "loss" not in before.metrics
    expected = [record.metrics for record in read_records(Path(usual.checkpoint).parent) if record.metrics]
    for name in ("loss", "val_loss"):
        assert [record.metrics[name] for record in after] == [metrics[name] for metrics in expected]
    first = list_checkpoints(tmp_path)[0]
    assert first.metadata["step"] == 0
    resumed = rank(perform_initial_validation=True, start=first)
    assert resumed.metrics == usual.metrics


def test_the_model_before_the_first_step_can_be_the_best_one(rank):
    worse = {"hyperparameters": {"learning_rate": -0.1}, "early_stopping": {"patience": 2}, "epochs": 9}
    outcome = rank(perform_initial_validation=True, **worse)
    assert outcome.epochs == 2
    kept = open_checkpoint(outcome.checkpoint)
    assert (outcome.best_epoch, kept.metadata["step"], kept.state()["step"]) == (0, 0, 0)
    assert kept.metadata["metrics"] == outcome.metrics


def test_callbacks_see_the_best_weights_at_the_end_where_they_are_to_be_restored(rank):
    import keras

    ends = []

    class Spoilt(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                self.model.layers[-1].kernel.assign(self.model.layers[-1].kernel * -9.0)

        def on_train_end(self, logs=None):
            ends.append(self.model.get_weights())

    class Spoiling(Tiny):
        def keras_callbacks(self):
            return [Spoilt()]

    outcome = rank(Spoiling, epochs=3, early_stopping={"patience": 9, "restore_best_weights": True})
    assert outcome.best_epoch < 3
    best, last = (open_checkpoint(path).load_model().get_weights() for path in (outcome.checkpoint, outcome.last))
    for mine, theirs in zip(ends[0], best, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert any(not np.array_equal(mine, theirs) for mine, theirs in zip(best, last, strict=True))


def test_augmentation_sees_training_images_only(rank, table):
    class Blackened(Tiny):
        def preprocess(self, images, labels, seed):
            return images * 0.0, labels

    outcome = rank(Blackened, hyperparameters={"learning_rate": 1e-6}, epochs=1)
    # Black images are all alike to the untrained model, which gives each class a third; 90 rows fill six batches of 16.
    assert outcome.metrics["loss"] == pytest.approx(math.log(3), abs=1e-3)
    assert outcome.metrics["val_loss"] != pytest.approx(outcome.metrics["loss"], abs=1e-3)


def test_a_dataset_that_does_not_tell_its_length_goes_on_within_an_epoch(rank, tmp_path):
    class Filtered(Tiny):
        def build_training_dataset(self):
            given = self.context.training_feed.as_dataset(self.context.global_batch_size, 0, 1)
            return given.filter(lambda *_: True)

    # An epoch has 6 steps; step 8 lies in the second one.
    storage = {"save_trial_best": 9, "save_trial_latest": 9}
    whole = rank(Filtered, min_checkpoint_period={"batches": 8}, checkpoint_storage=storage)
    start = next(each for each in list_checkpoints(tmp_path) if each.metadata["step"] == 8)
    resumed = rank(Filtered, start=start)
    assert resumed.metrics == pytest.approx(whole.metrics, rel=1e-5)


def test_where_the_best_one_is_not_kept_the_outcome_tells_of_the_last(rank):
    # The model before the first step is the best one.
    outcome = rank(perform_initial_validation=True, checkpoint_policy="none", hyperparameters={"learning_rate": -0.1})
    told = open_checkpoint(outcome.last).metadata
    assert (outcome.checkpoint, outcome.best_epoch, told["step"]) == ("", 2, 12)
    # NaN is kept as its name.
    assert outcome.metrics == pytest.approx({n: float(v) for n, v in told["metrics"].items()}, nan_ok=True)


# --- what is refused before the first step -------------------------------------------------------------------------


def _with_model(build) -> type[KerasTrial]:
    class Other(Tiny):
        def build_model(self):
            import keras

            model = build(self, keras)
            if isinstance(model, keras.Model) and not model.compiled:
                model.compile("sgd", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
            return model

    return Other


def _taking_8_pixels(trial, keras):
    return keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(3)])


def _with_code(trial, keras):
    return keras.Sequential([*trial.layers(), keras.layers.Lambda(lambda values: values)])


def _distributed(trial, keras):
    import lakelens.hvd as hvd

    model = keras.Sequential(trial.layers())
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "sparse_categorical_crossentropy")
    return model


class _Uncompiled(Tiny):
    def build_model(self):
        import keras

        return keras.Sequential(self.layers())


class _Bare(Trial):
    pass


REFUSED: dict[str, tuple[type[Any], dict[str, Any], type[Exception], str]] = {
    "no model": (_with_model(lambda trial, keras: None), {}, TrialError, "build_model gave NoneType"),
    "not compiled": (_Uncompiled, {}, TrialError, "not compiled; call model.compile"),
    "distributed": (_with_model(_distributed), {}, TrialError, "wraps its optimizer in hvd.DistributedOptimizer"),
    "another size": (_with_model(_taking_8_pixels), {}, TrialError, r"takes \(None, 8, 8, 3\), .*\(None, 16, 16, 3\)"),
    "code": (_with_model(_with_code), {}, CheckpointError, "'Lambda', which runs code"),
    "no framework": (_Bare, {}, TrialError, r"is not a lakelens\.KerasTrial"),
    "metric": (Tiny, {"searcher": {"metric": "val_auc"}}, TrialError, "'val_auc' is not among .*loss, val_accuracy,"),
    "less than no blocks": (SmallCnn, {"hyperparameters": {"blocks": -1}}, TrialError, r"allow 0 \(automatic\) to 3"),
    "blocks": (SmallCnn, {"hyperparameters": {"blocks": 9}}, TrialError, r"16 pixels allow 0 \(automatic\) to 3"),
}


@pytest.mark.parametrize(("trial", "changes", "error", "words"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused_before_the_first_step(rank, tmp_path, trial, changes, error, words):
    with pytest.raises(error, match=words):
        rank(trial, **changes)
    assert list_checkpoints(tmp_path) == []
    assert read_records(tmp_path) == []


def test_one_value_per_image_tells_two_classes_apart(rank, table):
    def build(trial, keras):
        size = (*trial.context.image_size, 3)
        colour = [keras.Input(size), keras.layers.Rescaling(1 / 255), keras.layers.GlobalAveragePooling2D()]
        model = keras.Sequential([*colour, keras.layers.Dense(1, activation="sigmoid")])
        model.compile(keras.optimizers.Adam(0.1), "binary_crossentropy", weighted_metrics=["accuracy"])
        return model

    training, validation = (
        DeltaFeed(table, 0, split, 1, filters={"label": [0, 1]}) for split in ("train", "validation")
    )
    changes = {"training_feed": training, "validation_feed": validation, "class_names": CLASSES[:2]}
    outcome = rank(_with_model(build), **changes, epochs=6)
    assert outcome.metrics["val_accuracy"] == 1
    assert open_checkpoint(outcome.checkpoint).class_names == ["blue", "green"]


def test_a_model_of_the_users_own_classes_is_trained_with_a_word_about_loading_it_even_without_validation(rank, capfd):
    import keras

    @keras.saving.register_keras_serializable("mine")
    class Subclassed(keras.Model):
        def __init__(self, **arguments):
            super().__init__(**arguments)
            self.dense = keras.layers.Dense(3, activation="softmax")

        def call(self, images):
            return self.dense(keras.ops.mean(images, axis=(1, 2)) / 255)

    outcome = rank(_with_model(lambda trial, keras: Subclassed()), validation_feed=None, epochs=1)
    assert set(outcome.metrics) == {"accuracy", "loss"}
    assert "pass custom_objects={'mine>Subclassed': <the class>}" in "".join(capfd.readouterr())
    with pytest.raises(CheckpointError, match="custom_objects"):
        open_checkpoint(outcome.checkpoint).load_model()
    loaded = open_checkpoint(outcome.checkpoint).load_model(custom_objects={"mine>Subclassed": Subclassed})
    assert loaded(np.zeros((1, SIDE, SIDE, 3), "float32")).shape == (1, 3)


def test_a_metric_that_a_step_of_the_users_own_could_give_is_waited_for(rank, tmp_path):
    import keras

    class Stepping(keras.Sequential):
        def test_step(self, data):
            return {**super().test_step(data), "mine": keras.ops.ones(())}

    class Own(Tiny):
        def build_model(self):
            model = Stepping(self.layers())
            model.compile("sgd", "sparse_categorical_crossentropy")
            return model

    goal = {"metric": "val_mine", "smaller_is_better": False}
    assert rank(Own, searcher=goal, epochs=1).metrics["val_mine"] == 1
    with pytest.raises(TrialError, match=r"'val_yours' is not among .*val_mine"):
        rank(Own, searcher=goal | {"metric": "val_yours"}, epochs=1)


def test_a_loss_that_is_not_finite_ends_the_training_with_its_step_and_keeps_nothing(rank, tmp_path):
    with pytest.raises(NotFiniteError, match=r"^loss is nan after step 6 \(epoch 1\); lower the learning rate"):
        rank(hyperparameters={"learning_rate": float("inf")})
    assert list_checkpoints(tmp_path) == []


def test_an_output_that_is_not_finite_ends_the_training_though_the_loss_is(rank):
    def constant_loss(labels, outputs, from_logits=True):
        import keras

        return keras.ops.nan_to_num(outputs[:, 0])

    def build(trial, keras):
        model = keras.Sequential([*trial.layers(), keras.layers.Rescaling(1.0, offset=float("nan"))])
        model.compile("sgd", constant_loss)
        return model

    with pytest.raises(NotFiniteError, match=r"^output is NaN or infinite for validation rows after step 6"):
        rank(_with_model(build))


def test_a_folder_that_rank_0_does_not_share_with_the_driver_is_refused(rank, tmp_path):
    other = tmp_path / "of another machine"
    with pytest.raises(
        CheckpointError, match=r"cannot read and write .*give a checkpoint_storage.path that both mount"
    ):
        rank(folder=other)
    other.mkdir()
    (other / PROBE_FILE).write_text("some other run")
    with pytest.raises(CheckpointError, match="is not the folder of that name on the driver's machine"):
        rank(folder=other)


@pytest.mark.parametrize(
    ("column", "value", "error", "words"),
    [
        ("image", b"no image", BadRowError, r"@1: row 1 of .*/split=train/part-.* does not decode"),
        ("label", 9, FeedError, "changed@1 has a row with label 9, the model gives classes 0 to 2"),
    ],
)
def test_a_bad_row_is_named_without_tensorflows_graph(rank, table, tmp_path, column, value, error, words):
    shutil.copytree(table, tmp_path / "changed")
    rows = coloured_rows(700, 3, "train").to_pydict()
    rows[column][1] = value
    rows = pa.table(rows, schema=coloured_rows(0, 1, "train").schema)
    write_deltalake(str(tmp_path / "changed"), rows, mode="append", partition_by=["split"])
    with pytest.raises(error, match=words) as caught:
        rank(training_feed=DeltaFeed(tmp_path / "changed", 1, "train", 1))
    assert len(str(caught.value)) < 700


def photograph(label: int, random: np.random.Generator) -> bytes:
    """Of two classes that nobody confuses: one disc, or stripes, in any colours and light."""
    rows, columns = np.mgrid[0:48, 0:48] / 48
    if label == 0:
        middle, radius = random.uniform(0.35, 0.65, 2), random.uniform(0.2, 0.3)
        shape = (columns - middle[0]) ** 2 + (rows - middle[1]) ** 2 < radius**2
    else:
        shape = np.sin(2 * np.pi * (columns * random.uniform(4, 7) + random.uniform())) > 0
    colours = np.where(shape[..., None], random.uniform(60, 255, 3), random.uniform(0, 120, 3))
    pixels = colours * random.uniform(0.5, 1) + random.normal(0, 12, (48, 48, 3))
    buffer = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype("uint8")).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def test_the_ready_made_trial_learns_an_easy_set_of_few_steps_an_epoch(rank, tmp_path):
    random, labels = np.random.default_rng(0), [number % 2 for number in range(200)]
    rows = {
        "image": pa.array([photograph(label, random) for label in labels], pa.binary()),
        "label": pa.array(labels, pa.int32()),
        "split": ["train"] * 160 + ["validation"] * 40,
    }
    write_deltalake(str(tmp_path / "photographs"), pa.table(rows), partition_by=["split"])
    training, validation = (DeltaFeed(tmp_path / "photographs", 0, split, 0) for split in ("train", "validation"))
    feeds = {"training_feed": training, "validation_feed": validation, "class_names": ["disc", "stripes"]}
    outcome = rank(SmallCnn, **feeds, image_size=(48, 48), global_batch_size=64, epochs=10, seed=0)
    assert outcome.metrics["val_accuracy"] > 0.94
    assert outcome.best_epoch > 1
    assert open_checkpoint(outcome.checkpoint).load_model().output_shape[-1] == 2


@pytest.mark.parametrize(
    ("split", "spoil", "error", "words"),
    [
        ("train", Path.unlink, VersionFilesMissingError, "is gone: VACUUM removed it"),
        ("validation", lambda file: file.write_bytes(file.read_bytes()[:-100]), FeedError, "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_by_its_own_error(tmp_path, split, spoil, error, words):
    squares = coloured_table(tmp_path / "squares")
    job = job_in(tmp_path / "job", squares, EntryPoint.parse(Tiny), epochs=1)
    (file,) = squares.glob(f"split={split}/*.parquet")
    spoil(file)
    with pytest.raises(error, match=f"squares@0: .*split={split}/{file.name} {words}"):
        train_segment(job)
