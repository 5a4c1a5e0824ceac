"""Makes the helpers importable, and gives a small experiment to search over."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

# pytest imports test files by path; what they share lies beside them.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

from coloured_tables import coloured_table
from mlflow_stores import put_store

TRIALS = '''
    import os, time, keras
    from lakelens.errors import InvalidHyperparameters
    import lakelens.hvd as hvd
    from lakelens.training.trials.keras_trial import KerasTrial

    class Tiny(KerasTrial):
        def build_model(self):
            act = self.context.get_hparam("act", "train")
            rate = self.context.get_hparam("learning_rate") * (1e32 if act == "diverge" else 1)
            self.act(act)
            model = keras.Sequential([
                keras.Input((*self.context.image_size, 3)),
                keras.layers.Rescaling(1 / 255),
                keras.layers.Conv2D(2, 3, strides=2, activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.GlobalAveragePooling2D(),
                keras.layers.Dropout(0.2),
                keras.layers.Dense(self.context.num_classes, activation="softmax"),
            ])
            loss = "sparse_categorical_crossentropy"
            model.compile(keras.optimizers.Adam(rate), loss, weighted_metrics=["accuracy"])
            return model

        def act(self, how):
            if how == "raise":
                raise ValueError("this trial cannot be built")
            if how == "die":
                os.kill(os.getpid(), 9)
            if how == "invalid":
                raise InvalidHyperparameters("no model has these")

        def keras_callbacks(self):
            return [Slow(float(os.environ.get("STEP_S", "0"))), DiesOnce(os.environ.get("DIES_ONCE_IN"))]

    class Slow(keras.callbacks.Callback):
        def __init__(self, seconds):
            self.seconds = seconds

        def on_train_batch_end(self, batch, logs=None):
            time.sleep(self.seconds)

    class DiesOnce(keras.callbacks.Callback):
        """Kills the first process that ends an epoch of a number, after its validation and before its checkpoint."""

        def __init__(self, folder):
            self.folder = folder

        def on_train_begin(self, logs=None):
            if self.folder:
                with open(os.path.join(self.folder, "attempts"), "a") as file:
                    file.write(str(hvd.attempt()))

        def on_epoch_end(self, epoch, logs=None):
            mark = os.path.join(self.folder or "", f"epoch-{epoch}")
            if self.folder and not os.path.exists(mark):
                open(mark, "w").close()
                os.kill(os.getpid(), 9)
'''


@pytest.fixture(scope="session")
def table(tmp_path_factory) -> Path:
    """90 rows to train on, 21 to validate on."""
    return coloured_table(tmp_path_factory.mktemp("search") / "squares")


@pytest.fixture
def keys(table, tmp_path) -> dict[str, Any]:
    """Nine trials of at most 4 epochs of 3 steps, of which a third goes on from 2 epochs."""
    (tmp_path / "tiny.py").write_text(textwrap.dedent(TRIALS))
    return {
        "name": "tiny",
        "entrypoint": f"{tmp_path / 'tiny.py'}:Tiny",
        "data": {"table": str(table)},
        "hyperparameters": {
            "learning_rate": {"type": "log", "base": 10, "minval": -4, "maxval": -1},
            "global_batch_size": 32,
        },
        "searcher": {
            "name": "adaptive_asha",
            "metric": "val_loss",
            "max_length": {"epochs": 4},
            "max_trials": 6,
            "max_concurrent_trials": 3,
            "divisor": 2,
            "bracket_rungs": [2],
        },
        "resources": {"max_slots": 2},
        "checkpoint_storage": {"path": str(tmp_path / "checkpoints")},
        "tracking": {"uri": put_store(tmp_path)},
    }
