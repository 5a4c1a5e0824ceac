"""SyncBatchNormalization on two ranks against Keras's own layer on the concatenated batch, in this process."""

from __future__ import annotations

import numpy as np
import pytest

from lakelens.errors import InvalidArgumentError

pytestmark = [pytest.mark.horovod, pytest.mark.tensorflow]

# Rows of each rank. One case is far from zero, where a mean of squares would lose the digits of the variance.
SHARES = (slice(0, 5), slice(5, 8))
STEPS = 3


def batch(shape, offset):
    rng = np.random.default_rng(3)
    return (rng.normal(size=shape) * np.arange(1, shape[-1] + 1) + offset).astype("float32")


def cases():
    """By name: the inputs of all ranks, the options of the layer, and which places count (None: all)."""
    return {
        "rows": (batch((8, 4), 100.0), {}, None),
        "images": (batch((8, 3, 2, 3), 5.0), {"momentum": 0.5}, None),
        "channels first": (batch((8, 3, 2), 1.0), {"axis": 1}, None),
        "masked": (batch((8, 3, 2), 1.0), {}, np.arange(24).reshape(8, 3) % 3 > 0),
        "one rank masked": (batch((8, 3, 2), 1.0), {}, np.repeat(np.arange(8) < 5, 3).reshape(8, 3)),
    }


def normalized(layer, x, mask, traced):
    """Steps of training: outputs, gradients of the inputs and of gamma and beta, and the moving statistics."""
    import tensorflow as tf

    weights = tf.constant(np.random.default_rng(4).normal(size=(8, *x.shape[1:])).astype("float32"))

    def step(x, weights):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True, mask=mask)
            loss = tf.reduce_sum(weights * tf.square(y))
        return y, *tape.gradient(loss, [x, layer.gamma.value, layer.beta.value])

    layer.build(x.shape)
    share = getattr(layer, "share", slice(None))
    run = tf.function(step) if traced else step
    for _ in range(STEPS):
        found = run(tf.constant(x[share]), weights[share])
    return [np.asarray(part) for part in (*found, layer.moving_mean, layer.moving_variance)]


def small_model(layer):
    import keras

    keras.utils.set_random_seed(5)
    inputs = keras.Input((4,))
    left, right = (keras.layers.Dense(3)(inputs) for _ in range(2))
    joined = keras.layers.Add()([layer()(left), layer()(right)])
    return keras.Model(inputs, keras.layers.Dense(1)(layer()(joined)))


def fitted(model, optimizer, share, rows_per_batch):
    x = batch((16, 4), 1.0)
    y = x.sum(1, keepdims=True)
    model.compile(optimizer, "mse")
    model.fit(x[share], y[share], batch_size=rows_per_batch, epochs=2, shuffle=False, verbose=0)
    return [np.asarray(weight) for weight in model.get_weights()]


def on_two_ranks():
    import keras
    import tensorflow as tf

    import lakelens.hvd as hvd

    hvd.init()
    if hvd.rank() == 1:
        small_model(hvd.SyncBatchNormalization)  # its layers have other names than those of rank 0 from here on
    share = SHARES[hvd.rank()]
    found = {}
    for name, (x, options, mask) in cases().items():
        for traced in (False, True):
            layer = hvd.SyncBatchNormalization(**options)
            layer.share = share
            given = None if mask is None else tf.constant(mask[share])
            found[name, traced] = normalized(layer, x, given, traced)
    half = tf.cast(batch((8, 4), 1.0)[share], tf.float16)
    halved = hvd.SyncBatchNormalization(dtype="mixed_float16")(half, training=True)
    found["half"] = halved.numpy(), halved.dtype.name
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05))
    found["fitted"] = fitted(small_model(hvd.SyncBatchNormalization), optimizer, slice(hvd.rank(), None, 2), 4)
    return found


@pytest.fixture(scope="module")
def ranks(two_ranks) -> list[dict]:
    return two_ranks.run(on_two_ranks)


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
@pytest.mark.parametrize("name", list(cases()))
def test_ranks_normalize_as_one_process_does_on_all_rows_and_so_do_their_gradients(ranks, name, traced):
    import keras
    import tensorflow as tf

    x, options, mask = cases()[name]
    given = None if mask is None else tf.constant(mask)
    y, of_x, of_gamma, of_beta, mean, variance = normalized(
        keras.layers.BatchNormalization(**options), x, given, traced
    )
    parts = [rank[name, traced] for rank in ranks]
    tolerance = {"rtol": 1e-3, "atol": 1e-3}
    np.testing.assert_allclose(np.concatenate([part[0] for part in parts]), y, **tolerance)
    np.testing.assert_allclose(np.concatenate([part[1] for part in parts]), of_x, **tolerance)
    np.testing.assert_allclose(sum(part[2] for part in parts), of_gamma, **tolerance)
    np.testing.assert_allclose(sum(part[3] for part in parts), of_beta, **tolerance)
    for part in parts:
        np.testing.assert_allclose(part[4], mean, rtol=1e-5)
        np.testing.assert_allclose(part[5], variance, rtol=1e-4)


def test_a_model_trains_on_two_ranks_as_in_one_process_on_the_same_global_batches(ranks):
    import keras

    # A global batch of eight is rows 0, 2, 4, 6 on one rank and 1, 3, 5, 7 on the other.
    expected = fitted(small_model(keras.layers.BatchNormalization), keras.optimizers.SGD(0.05), slice(None), 8)
    for rank in ranks:
        for found, wanted in zip(rank["fitted"], expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)


def test_half_precision_keeps_its_type(ranks):
    import keras
    import tensorflow as tf

    x = tf.cast(batch((8, 4), 1.0), tf.float16)
    expected = keras.layers.BatchNormalization(dtype="mixed_float16")(x, training=True).numpy()
    assert {rank["half"][1] for rank in ranks} == {"float16"}
    np.testing.assert_allclose(np.concatenate([rank["half"][0] for rank in ranks]), expected, atol=2e-3)


def test_a_saved_model_comes_back_with_the_layer_and_its_statistics(tmp_path):
    import keras

    import lakelens.hvd as hvd
    from lakelens.training.checkpoints.keras_files import load_keras_file, save_keras_file

    model = keras.Sequential([keras.Input((4,)), hvd.SyncBatchNormalization(momentum=0.5, name="normalized")])
    model.compile("sgd", "mse")
    model.fit(batch((8, 4), 1.0), batch((8, 4), 1.0), verbose=0)
    save_keras_file(model, tmp_path / "model.keras")
    loaded = load_keras_file(tmp_path / "model.keras", compile=True)
    layer = loaded.get_layer("normalized")
    assert type(layer) is hvd.SyncBatchNormalization
    assert layer.momentum == 0.5
    x = batch((8, 4), 2.0)
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
    assert type(hvd.load_model(tmp_path / "model.keras").get_layer("normalized")) is hvd.SyncBatchNormalization


def test_a_world_of_one_normalizes_as_keras_does_and_horovods_option_fused_is_refused():
    import keras

    import lakelens.hvd as hvd

    x = batch((8, 4), 1.0)
    ours = hvd.SyncBatchNormalization(fused=False)(x, training=True)
    np.testing.assert_array_equal(ours, keras.layers.BatchNormalization()(x, training=True))
    with pytest.raises(InvalidArgumentError, match="fused=True: statistics of all ranks have no fused form"):
        hvd.SyncBatchNormalization(fused=True)
