"""One experiment under each strategy: only the configuration differs, and neither the curves nor the rows do."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from coloured_tables import coloured_table
from mlflow_stores import put_store

from lakelens.errors import ConfigurationError, NotADeltaTableError
from lakelens.tracking.runs import open_client
from lakelens.training.checkpoints.checkpoint import open_checkpoint
from lakelens.training.configuration.experiment import ExperimentConfig
from lakelens.training.configuration.sections import Resources
from lakelens.training.experiment.strategies import Strategy, chosen
from lakelens.training.experiment.train import train
from lakelens.training.feed.feed import DeltaFeed
from lakelens.training.tasks.classification import Classification
from lakelens.training.trials.context import TrialContext
from lakelens.training.trials.entrypoint import EntryPoint

# The last batch has two rows.
ROWS, BATCH, EPOCHS, SEED = 90, 44, 2, 3

MEASURED = ("loss", "accuracy", "sparse_categorical_crossentropy")

COUNTING = """
    import threading

    import keras
    import tensorflow as tf
    from pathlib import Path
    from lakelens.training.trials.keras_trial import KerasTrial

    class Counting(KerasTrial):
        '''No batch normalization, dropout or augmentation; counts the rows that it is given.'''

        def build_model(self):
            self.drawn, self.lock = 0, threading.Lock()
            self.folder = Path(self.context.get_hparam("folder"))
            model = keras.Sequential([
                keras.Input((*self.context.image_size, 3)),
                keras.layers.Rescaling(1 / 255),
                keras.layers.Conv2D(4, 3, activation="relu"),
                keras.layers.GlobalAveragePooling2D(),
                keras.layers.Dense(self.context.num_classes, activation="softmax", kernel_regularizer="l2"),
            ])
            # The norm is clipped at every step: of the gradients of all rows, not of those of one device.
            optimizer = keras.optimizers.SGD(0.5, momentum=0.9, clipnorm=0.05)
            crossentropy = "sparse_categorical_crossentropy"
            model.compile(optimizer, crossentropy, metrics=["accuracy"], weighted_metrics=[crossentropy])
            return model

        def preprocess(self, images, labels, seed):
            def count(images):
                with self.lock:  # tf.data maps several batches at once
                    self.drawn += len(images)
                    (self.folder / f"drawn-by-{self.context.rank}").write_text(str(self.drawn))
                return images
            counted = tf.numpy_function(count, [images], tf.float32)
            counted.set_shape(images.shape)
            return counted, labels

    def heavier(images, labels, weights):
        return images, labels, weights * tf.where(labels == 0, 3.0, 1.0)

    class Weighted(Counting):
        '''Its own datasets, from the feeds of its context; rows of one class weigh more.'''

        def build_model(self):
            model = super().build_model()
            model.optimizer.clipnorm = None  # it would hide a factor of all gradients
            return model

        def build_training_dataset(self):
            given = self.context
            feed = given.training_feed.as_dataset(given.global_batch_size, given.rank, given.size, given.epochs)
            return feed.map(heavier)

        def build_validation_dataset(self):
            given = self.context
            return given.validation_feed.as_dataset(given.global_batch_size, given.rank, given.size).map(heavier)
"""


@dataclass(frozen=True)
class Curve:
    """What a training left behind."""

    metrics: dict[str, list[float]]  # Values by epoch
    weights: list[np.ndarray]  # Those of its last checkpoint
    drawn: int = 0  # Rows, over all ranks
    ranks: int = 1


@pytest.fixture(scope="module")
def experiment(tmp_path_factory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("strategies")
    (folder / "counting.py").write_text(textwrap.dedent(COUNTING))
    return {
        "entrypoint": f"{folder / 'counting.py'}:Counting",
        "data": {"table": str(coloured_table(folder / "squares"))},
        "searcher": {"max_length": {"epochs": EPOCHS}},
        "checkpoint_storage": {"path": str(folder / "checkpoints")},
        "tracking": {"uri": put_store(folder)},
        "reproducibility": {"experiment_seed": SEED},
    }


@pytest.fixture(scope="module")
def trained(experiment, tmp_path_factory) -> Callable[..., Curve]:
    """Trains under a strategy."""

    def run(
        strategy: str,
        slots: int,
        batch: int = BATCH,
        passes: int = 1,
        trial: str = "Counting",
        table: str = experiment["data"]["table"],
        **more: Any,
    ) -> Curve:
        folder = tmp_path_factory.mktemp(strategy)
        keys = experiment | {"resources": {"strategy": strategy, "slots_per_trial": slots}}
        keys["entrypoint"] = entry_point(experiment, trial)
        keys["data"] = {"table": table}
        keys["hyperparameters"] = {"global_batch_size": batch, "folder": str(folder)}
        keys["optimizations"] = {"aggregation_frequency": passes}
        result = train(keys, **more)
        client = open_client(experiment["tracking"]["uri"])
        names = (*MEASURED, *(f"val_{name}" for name in MEASURED))
        histories = {name: client.get_metric_history(result.run_id, name) for name in names}
        metrics = {name: [point.value for point in history] for name, history in histories.items()}
        assert [point.step for point in histories["loss"]] == list(range(1, EPOCHS + 1))
        drawn = sum(int(path.read_text()) for path in folder.glob("drawn-by-*"))
        kept = open_checkpoint(result.checkpoint)
        assert (result.version, result.digest) == (0, kept.digest)
        return Curve(metrics, kept.load_model().get_weights(), drawn, result.ranks)

    return run


def entry_point(experiment: dict[str, Any], trial: str) -> str:
    return experiment["entrypoint"].replace(":Counting", f":{trial}")


def assert_same_curve(one: Curve, other: Curve) -> None:
    for name in one.metrics.keys() & other.metrics.keys():
        values = one.metrics[name]
        assert other.metrics[name] == pytest.approx(values, rel=1e-4), name
    for mine, theirs in zip(one.weights, other.weights, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-5)


@pytest.fixture(scope="module")
def plain(experiment, tmp_path_factory) -> Callable[..., Curve]:
    """Trains the same model in Keras' own way on the same batches, the last one short; once with the same arguments."""

    @functools.cache
    def train(batch: int, passes: int, trial: str) -> Curve:
        import keras

        folder = tmp_path_factory.mktemp("plain")
        feed = DeltaFeed(experiment["data"]["table"], 0, "train", SEED)
        shared = {"task": Classification(feed.class_names), "image_size": feed.stored_size, "global_batch_size": batch}
        job = {"epochs": EPOCHS, "rank": 0, "size": 1, "seed": SEED, "training_feed": feed, "validation_feed": None}
        context = TrialContext(hyperparameters={"folder": str(folder)}, **shared, **job)
        keras.utils.set_random_seed(SEED)
        model = EntryPoint.parse(entry_point(experiment, trial)).load()(context).build_model()
        if passes > 1:
            model.optimizer.gradient_accumulation_steps = passes
        heavy = 3.0 if trial == "Weighted" else 1.0

        def weighted(images, labels, _):
            return images, labels, np.where(labels == 0, heavy, 1.0)

        batches = (weighted(*parts) for parts in feed.as_numpy(batch, 0, 1, EPOCHS))
        steps = feed.steps_per_epoch(batch)
        validation = DeltaFeed(experiment["data"]["table"], 0, "validation", shuffle=False)
        given = {"validation_data": weighted(*next(validation.as_numpy(validation.rows, 0, 1)))}
        history = model.fit(batches, epochs=EPOCHS, steps_per_epoch=steps, verbose=0, shuffle=False, **given).history
        metrics = {name: [float(value) for value in values] for name, values in history.items()}
        return Curve(metrics, model.get_weights())

    return train


@pytest.mark.horovod
@pytest.mark.parametrize(
    ("strategy", "batch", "passes", "trial"),
    # Of a batch of 89 of 90 rows the ranks have 45 and 44; the next one has one row: one rank has none.
    [("mirrored", BATCH, 1, "Counting"), ("horovod_local", 89, 2, "Weighted")],
)
def test_padding_and_weights_of_rows_change_neither_gradients_nor_loss_nor_metrics(
    trained, plain, strategy, batch, passes, trial
):
    found = trained(strategy, 2, batch, passes, trial)
    assert_same_curve(plain(batch, passes, trial), found)
    assert found.metrics["loss"][1] < found.metrics["loss"][0]
    if strategy == "mirrored":  # ranks fill up the last batch
        assert found.drawn == EPOCHS * ROWS
    assert found.ranks == (2 if strategy == "horovod_local" else 1)


@pytest.mark.horovod
@pytest.mark.spark
def test_two_tasks_of_a_barrier_stage_train_a_catalog_table_as_one_process_does(spark, trained, plain, experiment):
    spark.sql("CREATE DATABASE IF NOT EXISTS pictures")
    spark.sql(f"CREATE TABLE pictures.squares USING delta LOCATION '{experiment['data']['table']}'")
    try:
        cluster = trained("horovod_cluster", 2, table="spark_catalog.pictures.squares", spark=spark)
    finally:
        spark.sql("DROP DATABASE pictures CASCADE")  # the files stay
    assert (cluster.ranks, cluster.drawn) == (2, EPOCHS * ROWS)
    assert_same_curve(plain(BATCH, 1, "Counting"), cluster)
    with pytest.raises(NotADeltaTableError, match=r"no Delta table pictures\.squares"):
        train("pictures.squares", spark=spark)


def config_of(**changes: Any) -> ExperimentConfig:
    return ExperimentConfig.read({"data": {"table": "/data/t"}} | changes)


@pytest.mark.spark
def test_auto_takes_the_executors_of_a_session_that_has_the_slots(spark, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    for slots, name in ((1, "single"), (4, "horovod_cluster")):
        assert chosen(config_of(resources={"slots_per_trial": slots}), spark)[0] == name
    resources = {"slots_per_trial": 5, "slots_wait_s": 0.0}
    assert chosen(config_of(resources=resources), spark) == (
        "horovod_local",
        "5 slots, a Spark session with 4 slots and 4 GPUs here",
    )


@pytest.mark.unit
@pytest.mark.parametrize(
    ("resources", "ranks"),
    [
        ({}, -1),
        ({"slots_per_trial": 3, "strategy": "horovod_cluster"}, 3),
        ({"slots_per_trial": 0, "strategy": "horovod_cluster"}, 0),
        ({"slots_per_trial": 2, "strategy": "horovod_local"}, -2),
        ({"slots_per_trial": 1, "strategy": "single"}, -1),
    ],
)
def test_the_strategy_says_where_ranks_run(monkeypatch, resources, ranks):
    monkeypatch.setattr("lakelens.spark.session.running_session", lambda: None)  # other tests' session
    assert Strategy.of(config_of(resources=resources)).np == ranks


@pytest.mark.unit
@pytest.mark.parametrize(
    ("gpus", "changes", "name"),
    [
        ("0,1", {}, "mirrored"),
        ("0,1", {"optimizations": {"aggregation_frequency": 2}}, "horovod_local"),
        ("0", {}, "horovod_local"),
        ("", {}, "horovod_local"),
    ],
)
def test_auto_without_executors_takes_this_machines_gpus_or_processes(monkeypatch, capfd, gpus, changes, name):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    monkeypatch.setattr("lakelens.spark.session.running_session", lambda: None)  # other tests' session
    strategy = Strategy.of(config_of(resources={"slots_per_trial": 2}, **changes))
    assert strategy.name == name
    assert f"lakelens: strategy auto is {name}, because of" in capfd.readouterr().err


@pytest.mark.unit
def test_mirrored_shows_one_process_all_of_its_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,7")
    config = config_of(resources={"strategy": "mirrored", "slots_per_trial": 2})
    strategy = Strategy.of(config)
    assert (strategy.np, strategy.replicas, strategy.use_gpu) == (-1, 2, False)
    assert strategy.env == {"CUDA_VISIBLE_DEVICES": "4,5", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.unit
@pytest.mark.parametrize(
    ("gpus", "resources", "batch", "words"),
    [
        ("0", {"slots_per_trial": 2}, 16, "it has 1, and .* is 2; horovod_cluster uses the slots of executors"),
        ("", {"slots_per_trial": 2, "use_gpu": True}, 16, "it has 0"),
        ("0,1,2", {"slots_per_trial": 3}, 16, "16 cannot be shared equally by 3 devices.*a multiple of 3"),
    ],
)
def test_mirrored_that_this_machine_cannot_do_is_refused(monkeypatch, gpus, resources, batch, words):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    keys = {"resources": {"strategy": "mirrored"} | resources, "hyperparameters": {"global_batch_size": batch}}
    with pytest.raises(ConfigurationError, match=words):
        Strategy.of(config_of(**keys))


@pytest.mark.unit
def test_resolved_resources_name_the_strategy_and_keep_a_port_for_ranks_on_executors_only():
    given = Resources(driver_port=4040)
    for name, port in (("single", None), ("horovod_local", None), ("horovod_cluster", 4040)):
        resolved = Strategy(name, -1).resolved(given)
        assert (resolved.strategy, resolved.driver_port) == (name, port)
        assert resolved.model_dump(exclude_unset=True)["strategy"] == name
