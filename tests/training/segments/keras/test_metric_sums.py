"""Rules of metrics over ranks: they are those of one process that sees all rows, and every rank acts on them alike."""

from __future__ import annotations

import json
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coloured_tables import coloured_table
from rank_pair import RankPair
from segment_jobs import job_in

from lakelens.errors import TrialError
from lakelens.tracking.run_writer import read_records
from lakelens.training.checkpoints.checkpoint import open_checkpoint
from lakelens.training.checkpoints.keras_files import load_weights
from lakelens.training.feed.feed import DeltaFeed
from lakelens.training.segments.job import TrainingJob
from lakelens.training.segments.outcome import SegmentOutcome
from lakelens.training.trials.context import TrialContext
from lakelens.training.trials.entrypoint import EntryPoint

# As good as no training: the metrics of an epoch are those of the model at its end.
STILL = 1e-12

MEASURED = """
    import json
    import keras
    from pathlib import Path
    from lakelens.training.trials.keras_trial import KerasTrial

    class Auc(keras.metrics.AUC):
        '''One class against the others, on labels and probabilities of all.'''

        def update_state(self, labels, values, sample_weight=None):
            labels = keras.ops.cast(keras.ops.equal(labels, 1), "float32")
            return super().update_state(labels, values[:, 1], sample_weight)

    class Recalls(keras.metrics.Metric):
        '''A user's own, which gives a value per class.'''

        def __init__(self, name="recalls"):
            super().__init__(name=name)
            self.found = self.add_variable((3,), "zeros", name="found")
            self.there = self.add_variable((3,), "zeros", name="there")

        def update_state(self, labels, values, sample_weight=None):
            true = keras.ops.one_hot(labels, 3)
            if sample_weight is not None:
                true *= keras.ops.reshape(sample_weight, (-1, 1))
            self.found.assign_add(keras.ops.sum(true * keras.ops.one_hot(keras.ops.argmax(values, -1), 3), 0))
            self.there.assign_add(keras.ops.sum(true, 0))

        def result(self):
            return self.found / keras.ops.maximum(self.there, 1)

    class Diary(keras.callbacks.Callback):
        def __init__(self, path):
            super().__init__()
            self.path = Path(path)

        def on_test_end(self, logs=None):
            self.validated = {f"validated_{name}": value for name, value in logs.items()}

        def on_epoch_end(self, epoch, logs=None):
            line = {**logs, **self.validated, "rate": float(self.model.optimizer.learning_rate)}
            with self.path.open("a") as file:
                file.write(json.dumps(line) + "\\n")

    class Measured(KerasTrial):
        def build_model(self):
            model = keras.Sequential([
                keras.Input((*self.context.image_size, 3)),
                keras.layers.Rescaling(1 / 255),
                keras.layers.Conv2D(4, 3, activation="relu"),
                keras.layers.GlobalAveragePooling2D(),
                keras.layers.Dense(self.context.num_classes, activation="softmax"),
            ])
            metrics = ["accuracy", Auc(name="auc"), Recalls(),
                       keras.metrics.SparseTopKCategoricalAccuracy(2, name="top_2"),
                       keras.metrics.MeanIoU(3, sparse_y_pred=False, name="iou")]
            optimizer = keras.optimizers.SGD(self.context.get_hparam("learning_rate"))
            model.compile(optimizer, "sparse_categorical_crossentropy", weighted_metrics=metrics)
            return model

        def keras_callbacks(self):
            folder = self.context.get_hparam("diaries")
            return [
                keras.callbacks.ReduceLROnPlateau("val_iou", mode="max", factor=0.5, patience=1),
                keras.callbacks.EarlyStopping("val_auc", mode="max", patience=2, restore_best_weights=True),
                keras.callbacks.ModelCheckpoint(f"{folder}/best.keras", "val_auc", mode="max"),
                keras.callbacks.CSVLogger(f"{folder}/log.csv"),
                Diary(f"{folder}/{self.context.rank}"),
            ]
"""


def job_of(folder: Path, rows: int, **changes: Any) -> TrainingJob:
    table = folder / "squares"
    if not table.exists():
        coloured_table(table, 50, rows)
        (folder / "measured.py").write_text(textwrap.dedent(MEASURED))
    entrypoint = EntryPoint.parse(f"{folder / 'measured.py'}:Measured")
    hyperparameters = {"learning_rate": STILL, "diaries": str(folder)}
    return job_in(folder, table, entrypoint, **({"hyperparameters": hyperparameters, "epochs": 6} | changes))


def both(jobs: list[TrainingJob]) -> list[SegmentOutcome]:
    """Runs on every rank."""
    from lakelens.training.segments.segment import train_segment

    return [train_segment(job) for job in jobs]


@pytest.fixture(scope="module")
def trained(two_ranks: RankPair, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[TrainingJob, SegmentOutcome]]:
    """A job with rows for both ranks and one with a validation row for one of them."""
    many, one = (tmp_path_factory.mktemp(name) for name in ("many", "one"))
    jobs = [job_of(many, 21), job_of(one, 1, epochs=1)]
    outcomes, _ = two_ranks.run(both, jobs)
    for outcome in outcomes:
        outcome.raise_failure()
    return list(zip(jobs, outcomes, strict=True))


def values_of_one_process(job: TrainingJob, outcome: SegmentOutcome, feed: DeltaFeed) -> dict[str, float]:
    """Measures the checkpoint's weights on all rows of a feed in this process."""
    config = job.config
    context = TrialContext(
        hyperparameters=config.trial_hyperparameters, task=config.make_task(), image_size=config.image_size
    )
    model = job.entrypoint.load()(context).build_model()
    load_weights(model, open_checkpoint(outcome.checkpoint).model_path)
    batches = [[np.asarray(part) for part in batch] for batch in feed.as_dataset(16, 0, 1)]
    images, labels, weights = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    real = weights > 0
    found = model.evaluate(images[real], labels[real], batch_size=16, return_dict=True, verbose=0)
    recalls = {f"recalls_{number}": float(value) for number, value in enumerate(found.pop("recalls"))}
    return found | recalls


@pytest.mark.horovod
def test_every_metric_is_that_of_all_rows_and_callbacks_act_on_it_alike_on_all_ranks(trained):
    job, outcome = trained[0]
    of_training = values_of_one_process(job, outcome, job.training_feed)
    validated = values_of_one_process(job, outcome, job.validation_feed)
    assert of_training.keys() == {*(f"recalls_{n}" for n in range(3)), "auc", "top_2", "iou", "accuracy", "loss"}
    expected = of_training | {f"val_{name}": value for name, value in validated.items()}
    epochs = [record.metrics for record in read_records(job.folder) if record.metrics]
    for measured in epochs:
        assert {name: measured[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    # Where the mean of the ranks' values would be right too, the test would show nothing.
    assert 0 < validated["iou"] < 1
    assert 0 < validated["auc"] < 1
    diaries = [[json.loads(line) for line in (job.folder / str(rank)).read_text().splitlines()] for rank in (0, 1)]
    assert diaries[0] == diaries[1]
    for line in diaries[0]:
        assert {name: line[f"validated_{name}"] for name in validated} == {
            name: line[f"val_{name}"] for name in validated
        }
    assert (len(diaries[0]), outcome.epochs, outcome.reason) == (3, 3, "stopped")
    assert [line["rate"] for line in diaries[0]] == pytest.approx([STILL, STILL / 2, STILL / 4])
    # Files of Keras' own callbacks are written by one rank.
    with zipfile.ZipFile(job.folder / "best.keras") as written:
        assert written.testzip() is None
        assert "model.weights.h5" in written.namelist()
    assert (job.folder / "log.csv").read_text().count("\n") == 1 + outcome.epochs


@pytest.mark.horovod
def test_a_rank_without_validation_rows_adds_nothing(trained):
    job, outcome = trained[1]
    validated = values_of_one_process(job, outcome, job.validation_feed)
    measured = {f"val_{name}": value for name, value in validated.items()}
    assert {name: outcome.metrics[name] for name in measured} == pytest.approx(measured, rel=1e-5)
    diaries = [json.loads((job.folder / str(rank)).read_text()) for rank in (0, 1)]
    assert diaries[0] == diaries[1]
    assert diaries[0]["validated_loss"] == pytest.approx(validated["loss"], rel=1e-5)


@pytest.mark.tensorflow
def test_a_metric_whose_state_cannot_be_summed_is_named():
    import keras

    from lakelens.training.segments.keras.metric_sums import check_metrics

    class InAList(keras.metrics.Metric):
        def update_state(self, labels, values, sample_weight=None):
            self.seen = [labels]

        def result(self):
            return 0.0

    class Alone(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="alone")
            self.state = self.add_variable((), "zeros", aggregation="none", name="state")

        def update_state(self, labels, values, sample_weight=None):
            self.state.assign(1.0)

        def result(self):
            return self.state

    for metric, words in [
        (InAList(name="listed"), "'listed' .InAList. keeps no state"),
        (Alone(), "with aggregation 'none'"),
    ]:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=[metric])
        model.train_on_batch(np.zeros((2, 4)), np.zeros((2, 1)))
        with pytest.raises(TrialError, match=words):
            check_metrics(model)
