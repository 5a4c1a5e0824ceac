"""Callbacks of Horovod's on Keras 3, on two real ranks."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.horovod

ROWS = (8, 24)  # unequal, so that averages must be weighted


def rows_of_rank(rank):
    x = np.random.default_rng(rank).normal(size=(ROWS[rank], 3)).astype("float32")
    return x, x.sum(1, keepdims=True)


def fitted():
    """What a rank saw of a training: weights before and after the first broadcast, rates and its history."""
    import keras

    import lakelens.hvd as hvd

    hvd.init()
    rank = hvd.rank()
    keras.utils.set_random_seed(100 + rank)
    dropout = keras.layers.Dropout(0.2, seed=7 + rank)
    hidden = [keras.layers.Dense(4), dropout, keras.layers.BatchNormalization()]
    model = keras.Sequential([keras.Input((3,)), *hidden, keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Nadam(0.01)), "mse", metrics=["mae"])
    before, started, rates = [weight.tolist() for weight in model.get_weights()], [], []

    class Seen(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if not started:
                started.extend(weight.tolist() for weight in self.model.get_weights())

        def on_train_batch_end(self, batch, logs=None):
            rates.append(float(self.model.optimizer.learning_rate))

    x, y = rows_of_rank(rank)
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.LearningRateWarmupCallback(0.01, warmup_epochs=2),
        hvd.callbacks.MetricAverageCallback(),
        Seen(),
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=1, restore_best_weights=True),
    ]
    validation = (x, y) if rank == 0 else None
    history = model.fit(
        x, y, batch_size=len(x) // 4, epochs=3, verbose=0, validation_data=validation, callbacks=callbacks
    ).history
    names = ("loss", "mae", "val_loss", "val_mae")
    shared = {name: [round(float(value), 5) for value in history[name]] for name in names}
    seed = int(dropout.variables[0].numpy()[0])
    return {"before": before, "started": started, "rates": rates, "history": shared, "seed": seed}


def test_ranks_start_from_the_roots_weights_with_noise_of_their_own_and_agree_on_metrics_and_warm_up(two_ranks):
    first, second = two_ranks.run(fitted)
    assert first["before"] != second["before"]
    assert first["started"] == second["started"]
    assert (first["seed"], second["seed"]) == (7, 8)
    assert first["history"] == second["history"]  # and with them early stopping
    rates = first["rates"]
    assert rates[0] == pytest.approx(0.01 / 2 * (0.25 * 1 / 2 + 1))
    assert rates[7] == pytest.approx(0.01, rel=1e-5)
    assert rates == sorted(rates)


def averaged():
    """What a rank gets by the names that Horovod's users import."""
    import importlib

    import keras

    hvd = importlib.import_module("horovod.tensorflow.keras")
    callbacks = importlib.import_module("horovod.tensorflow.keras.callbacks")
    hvd.init()
    x, y = rows_of_rank(hvd.rank())
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    model.jit_compile = True
    averaging = callbacks.MetricAverageCallback()
    averaging.set_model(model)
    model.evaluate(x, y, batch_size=len(x), verbose=0)
    logs = {"loss": 1.0, "mae": 1.0, "only_here": 5.0} if hvd.rank() else {"loss": 0.0, "mae": 0.0}
    averaging.on_epoch_end(0, logs)
    return hvd.__name__, logs, model.jit_compile


def test_metrics_are_averaged_by_the_rows_that_each_rank_saw_and_xla_is_switched_off(two_ranks):
    # 8 rows say 0, 24 rows say 1; Horovod has no kernels for XLA.
    expected = ("lakelens.training.distributed", {"loss": 0.75, "mae": 0.75, "only_here": 5.0}, False)
    assert two_ranks.run(averaged) == [expected] * 2


def wrapped_from_outside():
    import keras

    import lakelens.hvd as hvd
    from lakelens.errors import LakelensError

    hvd.init()
    half = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    half.dtype_policy = keras.DTypePolicy("mixed_float16")
    half.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)), "mse")
    try:
        half.fit(*rows_of_rank(0), verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    except LakelensError as error:
        return str(error)
    return "accepted"


def test_a_policy_that_wraps_the_distributed_optimizer_from_outside_is_refused(two_ranks):
    for said in two_ranks.run(wrapped_from_outside):
        assert "pass hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))" in said
