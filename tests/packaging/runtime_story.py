"""One table from images to an evaluation, with the packages of a Databricks runtime. Started by `make test STACK=15.4`.

Not collected with the other tests: its environment is one of `.ci/runtime`, with lakelens installed from its wheel.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
from PIL import Image

import lakelens
from lakelens import horovod_build

pytestmark = [pytest.mark.spark, pytest.mark.horovod]

CLASSES = ("blue", "green", "red")
IMAGES_PER_CLASS = 40
EXPERIMENT = """\
name: story
entrypoint: lakelens.training.trials.small_cnn:SmallCnn
data: {{table: "{folder}/table", version: 0}}
hyperparameters: {{global_batch_size: 16, learning_rate: {rate}}}
searcher: {searcher}
resources: {resources}
checkpoint_storage: {{path: "{folder}/checkpoints"}}
tracking: {{uri: "sqlite:///{folder}/mlflow.db", experiment: story}}
"""
ONE_TRIAL = "{name: single, metric: val_loss, max_length: {epochs: 2}}"
RATES = "{type: log, minval: -3, maxval: -2}"
TWO_TRIALS = "{name: random, metric: val_loss, max_length: {epochs: 1}, max_trials: 2}"


def write_images(folder: Path) -> None:
    """Writes images of one colour and noise, a folder for each colour."""
    random = np.random.default_rng(0)
    for channel, name in enumerate(reversed(CLASSES)):
        (folder / name).mkdir(parents=True)
        for number in range(IMAGES_PER_CLASS):
            pixels = random.integers(0, 80, (32, 32, 3), dtype=np.uint8)
            pixels[..., channel] += 150
            Image.fromarray(pixels).save(folder / name / f"{number}.jpg")


@contextmanager
def step(name: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)


def rank_sum() -> float:
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    return float(hvd.allreduce(tf.constant(hvd.rank() + 1.0), op=hvd.Sum))


@pytest.mark.timeout(900)  # two to three minutes on a quiet machine
def test_images_become_a_scored_and_evaluated_table(tmp_path: Path) -> None:
    ranks = 2 if horovod_build.problem() is None else 1
    resources = (
        f"{{slots_per_trial: {ranks}, strategy: {'horovod_cluster' if ranks == 2 else 'single'}, use_gpu: false}}"
    )
    one = {"rate": 0.003, "searcher": ONE_TRIAL, "resources": resources}
    two = {"rate": RATES, "searcher": TWO_TRIALS, "resources": "{max_slots: 2, use_gpu: false}"}
    for name, values in {"one": one, "two": two}.items():
        (tmp_path / f"{name}.yaml").write_text(EXPERIMENT.format(folder=tmp_path, **values))
    images = len(CLASSES) * IMAGES_PER_CLASS
    write_images(tmp_path / "images")
    with step("session"):
        spark = lakelens.spark_session("local[2]", conf={"spark.sql.shuffle.partitions": "2"})
    with step("ingest"):
        table = lakelens.ImageTable(spark, str(tmp_path / "table"))
        ingested = table.ingest(str(tmp_path / "images"), layout="class_folders", size=32)
        assert (ingested.version, ingested.rows_in, ingested.stored) == (0, images, images)
    with step("feed"):
        feed = lakelens.DeltaFeed(tmp_path / "table", version=0, split="train")
        rows = sum(len(labels) for _, labels, *_ in feed.as_numpy(16))
        assert rows == feed.rows
    if ranks == 2:
        cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the ranks cannot import a test's module
        with step("HorovodRunner, two ranks"):
            assert lakelens.HorovodRunner(np=2, use_gpu=False).run(rank_sum) == 3
    with step(f"train, {ranks} rank(s)"):
        trained = lakelens.train(tmp_path / "one.yaml", spark=spark)
        assert math.isfinite(trained.metrics["val_loss"])
    with step("search, two trials"):
        found = lakelens.search(tmp_path / "two.yaml")
        assert sum(found.states.values()) == 2
        assert math.isfinite(found.value)
    model, tracking_uri = f"runs:/{trained.run_id}", f"sqlite:///{tmp_path / 'mlflow.db'}"
    predictions = str(tmp_path / "predictions")
    with step("score"):
        scored = lakelens.score(spark, model, table.location, predictions, 0, tracking_uri=tracking_uri)
        assert (scored.scored, scored.errors) == (images, 0)
    options = {"predictions": predictions, "tracking_uri": tracking_uri, "out": tmp_path / "page"}
    with step("evaluate"):
        evaluated = lakelens.evaluate(spark, model, table.location, 0, **options)
        assert 0 <= evaluated.evaluation.accuracy <= 1
    spark.stop()
