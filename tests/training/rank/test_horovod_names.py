"""A rank whose function imports Horovod's Keras modules gets those that work with Keras 3."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lakelens import HorovodRunner


@pytest.mark.unit
@pytest.mark.parametrize("old", ["horovod.keras", "horovod.tensorflow.keras"])
def test_the_old_names_are_the_same_modules(old: str) -> None:
    code = f"""
import sys, types
for name in ("horovod", "horovod.tensorflow"):  # their import takes TensorFlow's seconds
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = []
from lakelens.training.rank import horovod_names
horovod_names.install()
import {old} as hvd
import lakelens.hvd
assert hvd is lakelens.hvd, hvd
assert hvd.__spec__.name == "lakelens.training.distributed", hvd.__spec__
from {old} import size
assert size() == 1
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.horovod
@pytest.mark.parametrize("old", ["horovod.keras", "horovod.tensorflow.keras"])
def test_a_function_of_horovods_users_trains_with_keras_3(old: str) -> None:
    def train() -> tuple[str, int, list[float]]:
        import importlib

        import keras
        import numpy as np

        hvd = importlib.import_module(old)
        callbacks = importlib.import_module(f"{old}.callbacks")
        hvd.init()
        model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
        told = [callbacks.BroadcastGlobalVariablesCallback(0), callbacks.MetricAverageCallback()]
        history = model.fit(np.ones((8, 2)), np.ones(8), epochs=2, batch_size=4, verbose=0, callbacks=told)
        return hvd.__name__, hvd.size(), history.history["loss"]

    name, size, losses = HorovodRunner(np=-2).run(train)
    assert (name, size) == ("lakelens.training.distributed", 2)
    assert losses[1] < losses[0]
