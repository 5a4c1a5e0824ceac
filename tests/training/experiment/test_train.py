"""Rules of a whole training, from the call to the recorded result, on real ranks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from coloured_tables import coloured_rows, coloured_table
from deltalake import write_deltalake
from mlflow_stores import put_store
from tiny_trial import tiny_trial
from tracked_runs import tracked

from lakelens.errors import (
    InvalidArgumentError,
    NotAnImageTableError,
    RankFailedError,
    TrialError,
    UsageError,
    VersionNotFoundError,
)
from lakelens.ledger.protection import using
from lakelens.table import Table
from lakelens.tracking.runs import FAILURE_TAG, open_client
from lakelens.training.checkpoints.checkpoint import list_checkpoints, open_checkpoint
from lakelens.training.experiment.config_record import read_config
from lakelens.training.experiment.run_trial import TrainResult
from lakelens.training.experiment.train import train
from lakelens.training.feed.feed import DeltaFeed

LOCAL_RANKS = {"slots_per_trial": 2, "strategy": "horovod_local"}


def settings_in(folder: Path, trial: str = "Tiny", more: str = "") -> dict[str, Any]:
    """A short training whose store and checkpoints lie in a folder."""
    return {
        "entrypoint": tiny_trial(folder, trial, more),
        "epochs": 2,
        "global_batch_size": 16,
        "tracking_uri": f"sqlite:///{folder}/mlflow.db",
        "config": {"checkpoint_storage": {"path": str(folder / "checkpoints")}},
    }


@pytest.fixture
def store(tmp_path) -> None:
    put_store(tmp_path)


@pytest.fixture
def table(tmp_path) -> Path:
    return coloured_table(tmp_path / "squares")


@pytest.fixture
def trained(table, tmp_path):
    """Trains into a store and a folder of this test's own."""

    def run(trial: str = "Tiny", more: str = "", config: dict[str, Any] | None = None, **arguments) -> TrainResult:
        settings = settings_in(tmp_path, trial, more)
        settings["config"] |= config or {}
        return train(table, **(settings | arguments))

    return run


def only_run(tmp_path: Path):
    client = open_client(f"sqlite:///{tmp_path}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("lakelens").experiment_id])
    return run


APPENDING = """
    class Appending(Tiny):
        def build_model(self):
            if self.context.rank == 0:
                import sys
                sys.path.insert(0, {helpers!r})
                from coloured_tables import add_rows
                add_rows(self.context.training_feed.location, 500, 40, "train")
            return super().build_model()
"""


@pytest.fixture(scope="module")
def grown(tmp_path_factory) -> SimpleNamespace:
    """A training on two ranks during which its table has grown."""
    folder = tmp_path_factory.mktemp("grown")
    put_store(folder)
    table = coloured_table(folder / "squares")
    more = APPENDING.format(helpers=str(Path(__file__).parents[1]))
    settings = settings_in(folder, "Appending", more) | {"hyperparameters": {"learning_rate": 0.05}}
    result = train(table, **settings, version="latest", **LOCAL_RANKS)
    return SimpleNamespace(folder=folder, table=table, result=result)


@pytest.mark.horovod
def test_a_table_that_grows_during_the_run_changes_nothing_and_latest_is_recorded_as_its_number(grown):
    table, result = grown.table, grown.result
    assert DeltaFeed(table, split="train").version == 1
    assert (result.version, result.ranks, result.epochs) == (0, 2, 2)
    run = only_run(grown.folder)
    assert run.info.status == "FINISHED"
    assert run.info.run_id == result.run_id
    assert run.data.tags["lakelens.version"] == "0"
    (used,) = run.inputs.dataset_inputs
    assert '"delta_table_version": 0' in used.dataset.source
    assert '"num_rows": 111' in used.dataset.profile
    assert list(tracked(table).values()) == [[result.run_id]]
    kept = open_checkpoint(result.checkpoint)
    assert (kept.digest, kept.metadata["version"]) == (result.digest, 0)
    code = Path(open_client(grown.result.tracking_uri).download_artifacts(result.run_id, "code/tiny.py")).read_text()
    assert "class Appending" in code
    assert kept.metadata["ranks"] == 2


@pytest.mark.horovod
def test_what_a_run_holds_after_training(grown):
    client, run = open_client(grown.result.tracking_uri), only_run(grown.folder)
    run_id, result = run.info.run_id, grown.result
    assert [point.step for point in client.get_metric_history(run_id, "val_loss")] == [1, 2]
    assert run.data.metrics["best_val_loss"] == pytest.approx(result.metrics["val_loss"])
    assert (run.data.params["hyperparameters.learning_rate"], run.data.params["ranks"]) == ("0.05", "2")
    assert run.data.tags["lakelens.checkpoint_digest"] == result.digest
    files = {Path(file.path).name for file in client.list_artifacts(run_id, "checkpoint")}
    assert files == {"model.keras", "state.json", "manifest.json"}
    assert open_checkpoint(client.download_artifacts(run_id, "checkpoint")).digest == result.digest
    assert [path.name for path in Path(result.checkpoint).parent.iterdir()] == [Path(result.checkpoint).name]

    # Each rank logs how long it waited for batches and how long it computed.
    names = [f"{what}_seconds_rank{rank}" for what in ("feed_wait", "compute") for rank in (0, 1)]
    assert {name for name in run.data.metrics if "_seconds_rank" in name} == set(names)
    history = {name: client.get_metric_history(run.info.run_id, name) for name in (*names, "epoch_seconds")}
    assert all([point.step for point in points] == [1, 2] for points in history.values())
    assert all(point.value > 0 for name in names for point in history[name])


@pytest.mark.unit
def test_a_table_that_may_only_be_read_is_used_with_a_warning(table, monkeypatch, caplog):
    def mkdir(path, *_, **__):
        # Permission bits do not stop root, as whom tests may run.
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with using(Table.of(table), 0, "run"):
        pass
    assert f"the ledger of {table} cannot be written, so VACUUM may remove files" in caplog.text
    assert "[Errno 13] Permission denied" in caplog.text


KILLED = """
    import os, signal
    from lakelens.training.checkpoints import checkpoint as checkpoints

    class Killed(Tiny):
        def build_model(self):
            if self.context.rank == 0:
                sync, seen = checkpoints.sync, []
                def dying(path):
                    if "epoch-0002" in str(path):
                        os.kill(os.getpid(), signal.SIGKILL)
                    sync(path)
                checkpoints.sync = dying
            return super().build_model()
"""


@pytest.mark.usefixtures("store")
@pytest.mark.horovod
def test_rank_0_killed_while_it_writes_a_checkpoint_leaves_the_last_whole_one_and_its_last_epoch(
    trained, table, tmp_path
):
    with pytest.raises(RankFailedError, match="SIGKILL"):
        trained("Killed", KILLED)
    run = only_run(tmp_path)
    assert run.info.status == "FAILED"
    assert "SIGKILL" in run.data.tags[FAILURE_TAG]
    history = open_client(f"sqlite:///{tmp_path}/mlflow.db").get_metric_history(run.info.run_id, "val_loss")
    assert [point.step for point in history] == [1, 2]
    assert run.data.params["hyperparameters.learning_rate"] == "0.1"
    folder = tmp_path / "checkpoints" / run.info.run_id
    (kept,) = list_checkpoints(folder)
    assert kept.metadata["epoch"] == 1
    assert [path.name for path in folder.iterdir()] == [kept.name]
    assert tracked(table) == {0: [run.info.run_id]}  # the run can be resumed


@pytest.mark.usefixtures("store")
@pytest.mark.horovod
def test_a_misspelt_hyperparameter_is_the_callers_error_and_the_run_says_so(trained, table, tmp_path):
    with pytest.raises(TrialError, match="'lerning_rate'; did you mean 'learning_rate'"):
        trained(hyperparameters={"lerning_rate": 0.1})
    run = only_run(tmp_path)
    assert run.info.status == "FAILED"
    assert run.data.tags[FAILURE_TAG].startswith("TrialError: the Trial never asks for hyperparameter 'lerning_rate'")
    assert list((tmp_path / "checkpoints").iterdir()) == []
    assert tracked(table) == {}


WITH_NOISE = """
    import json
    from pathlib import Path

    import keras
    import tensorflow as tf

    class Witness(keras.callbacks.Callback):
        def __init__(self, trial):
            super().__init__()
            self.trial = trial

        def on_train_begin(self, logs=None):
            images = next(iter(self.trial.context.training_feed.as_dataset(16, 0, 1)))[0]
            self.seen = {"weights": [float(tf.reduce_sum(weight)) for weight in self.model.trainable_weights]}
            self.seen["dropped"] = self.model.get_layer("dropped")(tf.ones((1, 50)), training=True).numpy().tolist()
            self.seen["shifted"] = self.trial.shifts[0](images[:1], training=True).numpy().sum(axis=(1, 3)).tolist()
            self.seen["drawn"] = keras.random.uniform((3,), seed=self.trial.seeds["of lines"]).numpy().tolist()

        def on_epoch_end(self, epoch, logs=None):
            context = self.trial.context
            self.seen["mean"] = self.model.get_layer("norm").moving_mean.numpy().tolist()
            Path(context.get_hparam("out"), f"{context.rank}.json").write_text(json.dumps(self.seen))

    class WithNoise(Tiny):
        def build_model(self):
            self.shifts = [keras.layers.RandomTranslation(0.4, 0.4, fill_mode="constant", seed=self.context.seed)]
            self.seeds = {"of lines": keras.random.SeedGenerator(self.context.seed)}
            model = keras.Sequential([
                keras.Input((*self.context.image_size, 3)),
                keras.layers.BatchNormalization(name="norm"),
                keras.layers.GlobalAveragePooling2D(),
                keras.layers.Dropout(0.5, seed=self.context.seed, name="dropped"),
                keras.layers.Dense(self.context.num_classes, activation="softmax"),
            ])
            model.compile("sgd", "sparse_categorical_crossentropy")
            return model

        def preprocess(self, images, labels, seed):
            drawn = tf.random.uniform(())
            if self.context.get_hparam("out"):
                path = tf.constant(f"{self.context.get_hparam('out')}/{self.context.rank}.drawn")
                tf.io.write_file(path, tf.strings.as_string(drawn))
            return images, labels

        def keras_callbacks(self):
            return [Witness(self)]
"""


@pytest.mark.usefixtures("store")
@pytest.mark.horovod
def test_ranks_begin_alike_draw_noise_of_their_own_and_average_statistics_before_a_save_without_validation_too(
    trained, tmp_path
):
    changes = {"config": {"data": {"validation_split": None}}, "hyperparameters": {"out": str(tmp_path)}}
    result = trained("WithNoise", WITH_NOISE, **changes, epochs=1, **LOCAL_RANKS)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first["weights"] == second["weights"]
    for name in ("dropped", "shifted", "drawn"):
        assert first[name] != second[name]
    assert (tmp_path / "0.drawn").read_text() != (tmp_path / "1.drawn").read_text()
    saved = open_checkpoint(result.checkpoint).load_model().get_layer("norm").moving_mean.numpy().tolist()
    assert first["mean"] == second["mean"] == saved
    assert max(saved) > 1


IN_AN_ENVIRONMENT = """
    import os

    class InAnEnvironment(Tiny):
        def build_model(self):
            assert os.environ["OF_THE_RANKS"] == "a=b"
            return super().build_model()
"""


@pytest.mark.usefixtures("store")
@pytest.mark.tensorflow
def test_columns_filters_and_settings_of_ranks_reach_the_feed_the_ranks_and_the_record(tmp_path, capfd):
    rows = pa.concat_tables([coloured_rows(0, 60, "train"), coloured_rows(900, 12, "validation")])
    # A row of the training and one of the validation are damaged; both are of a class that is kept.
    images = [b"damaged" if row in (0, 60) else image for row, image in enumerate(rows["image"].to_pylist())]
    rows = rows.set_column(rows.schema.get_field_index("image"), "image", pa.array(images, pa.binary()))
    write_deltalake(str(tmp_path / "foreign"), rows.rename_columns([f"my_{name}" for name in rows.column_names]))
    settings = settings_in(tmp_path, "InAnEnvironment", IN_AN_ENVIRONMENT)
    settings["config"] |= {
        "data": {
            "columns": {name: f"my_{name}" for name in ("image", "label", "split", "format")},
            "class_names": ["blue", "green", "red"],
            "filters": {"my_label_name": ["blue", "red"]},
            "bad_rows": "skip",
            "read_timeout_s": 30,
        },
        "resources": {
            "env": {"OF_THE_RANKS": "a=b", "MY_TOKEN": "x"},
            "use_gpu": False,
            "slots_wait_s": 5,
            "driver_port": 4711,
        },
    }
    result = train(tmp_path / "foreign", **settings | {"epochs": 1}, image_size=16)
    said = "".join(capfd.readouterr())
    skipped = r"bad_rows skip: rank 0 met bad rows 1 times and left them out; the first: .*parquet"
    assert len(re.findall(skipped, said)) == 2, said
    config = read_config(result.tracking_uri, result.run_id)
    assert config.data.filters == {"my_label_name": ["blue", "red"]}
    assert config.data.columns.image == "my_image"
    assert (config.data.bad_rows, config.data.read_timeout_s) == ("skip", 30.0)
    assert config.resources.env == {"OF_THE_RANKS": "a=b"}
    kept = config.resources
    # The port is for ranks on executors, and this rank ran here.
    assert (kept.use_gpu, kept.slots_wait_s, kept.driver_port) == (False, 5.0, None)
    (used,) = only_run(tmp_path).inputs.dataset_inputs
    assert json.loads(used.dataset.profile)["rows"] == {"train": 40, "validation": 8}


# --- what is refused before anything starts ------------------------------------------------------------------------


@pytest.mark.unit
@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"global_batch_size": -1}, InvalidArgumentError, "global_batch_size=-1: give a whole number of at least 1"),
        ({"config": {"data": {"validation_split": "dev"}}}, InvalidArgumentError, "'dev'.*: null trains without"),
        ({"entrypoint": "no_such_module:Mine"}, TrialError, "Python finds no module"),
        ({"image_size": (8, 8, 3)}, InvalidArgumentError, r"give a number of pixels or \(height, width\)"),
        # A size that NumPy has computed is a size: what is refused is the version.
        ({"image_size": (np.int64(8), np.int64(8)), "version": 7}, VersionNotFoundError, "7"),
        ({"config": {"checkpoint_storage": {"path": "s3://bucket/c"}}}, InvalidArgumentError, "both mount"),
        # Read-only for the system's administrator too.
        ({"tracking_uri": "sqlite:////proc/mlflow.db"}, InvalidArgumentError, "folder /proc cannot be written"),
        ({"config": {"checkpoint_storage": {"path": "dbfs:/c"}}}, InvalidArgumentError, "give its mount: /dbfs/c"),
    ],
)
def test_what_cannot_succeed_is_refused_before_a_run_is_created(trained, tmp_path, arguments, error, words):
    with pytest.raises(error, match=words) as caught:
        trained(**arguments)
    assert isinstance(caught.value, UsageError)
    assert not (tmp_path / "mlflow.db").exists()
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.unit
def test_a_table_without_class_names_needs_them(tmp_path):
    # Rows with a label_name would tell them.
    write_deltalake(str(tmp_path / "plain"), coloured_rows(0, 6, "train").drop_columns(["label_name"]))
    with pytest.raises(NotAnImageTableError, match=r"set data\.class_names, one per label number"):
        train(tmp_path / "plain", config={"data": {"validation_split": None}})


@pytest.mark.usefixtures("store")
@pytest.mark.unit
def test_a_checkpoint_folder_that_cannot_be_made_fails_the_run_with_the_reason(trained, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Exception, match=r"checkpoint_storage\.path .*file/checkpoints cannot be written"):
        trained(config={"checkpoint_storage": {"path": str(tmp_path / "file" / "checkpoints")}})
    assert only_run(tmp_path).info.status == "FAILED"
