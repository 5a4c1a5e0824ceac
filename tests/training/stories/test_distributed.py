"""Horovod's names on Keras 3, on real ranks: one launch runs all checks, each test looks at one."""

from __future__ import annotations

import numpy as np
import pytest

from lakelens.errors import InvalidArgumentError

pytestmark = pytest.mark.horovod

# It leaves Horovod, which a rank joins once.
ENDS_THE_WORLD = True


def on_two_ranks():
    """Runs on every rank; gives the results of each check, by name."""
    import os

    import numpy as np
    import tensorflow as tf

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import keras

    import lakelens.hvd as hvd
    from lakelens.errors import LakelensError
    from lakelens.training.distributed.objects import seal, unseal

    hvd.init()
    hvd.init()  # does nothing
    rank, size = hvd.rank(), hvd.size()
    results = {
        "place": (
            rank,
            size,
            hvd.local_rank(),
            hvd.local_size(),
            hvd.cross_rank(),
            hvd.cross_size(),
            hvd.is_initialized(),
        )
    }

    # --- collectives: rank r holds r + 1
    for op in (hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product):
        results[f"allreduce {op.value}"] = (
            hvd.allreduce(tf.constant([[1.0, -2.0]]) * (rank + 1), op=op).numpy().tolist()
        )
    results["allreduce int64"] = hvd.allreduce(tf.constant([rank + 1], tf.int64), op=hvd.Sum).numpy().tolist()
    results["allreduce fp16"] = (
        hvd.allreduce(tf.constant([0.5]) * (rank + 1), compression=hvd.Compression.fp16).numpy().tolist()
    )
    results["allreduce fp16 type"] = hvd.allreduce(tf.constant([0.5]), compression=hvd.Compression.fp16).dtype.name
    results["allreduce scaled"] = (
        hvd.allreduce(tf.constant([1.0]) * (rank + 1), op=hvd.Sum, prescale_factor=2.0, postscale_factor=10.0)
        .numpy()
        .tolist()
    )
    results["allreduce numpy"] = hvd.allreduce(np.array([rank], np.float32)).numpy().tolist()

    def slices(rows):
        return tf.IndexedSlices(
            tf.ones([len(rows), 2]) * (rank + 1), tf.constant(rows), dense_shape=tf.constant([4, 2])
        )

    mixed = hvd.grouped_allreduce([tf.ones([3]) * rank, slices([rank, 2]), tf.ones([1, 1])], "mixed")
    results["grouped"] = [tf.convert_to_tensor(value).numpy().tolist() for value in mixed]
    results["grouped stays sparse"] = isinstance(mixed[1], tf.IndexedSlices)
    results["allgather"] = hvd.allgather(tf.fill([rank + 1, 1], rank)).numpy().tolist()
    results["broadcast"] = hvd.broadcast(tf.constant([rank]), 1).numpy().tolist()
    variables = [
        tf.Variable([float(rank)]),
        keras.Variable([rank], dtype="int64"),
        tf.Variable(tf.cast([rank], tf.uint32)),
        tf.Variable(tf.cast([rank], tf.bfloat16)),
    ]
    hvd.broadcast_variables(variables, 1)
    results["broadcast_variables"] = [
        float(np.asarray(tf.cast(tf.convert_to_tensor(v), tf.float32))[0]) for v in variables
    ]
    results["objects"] = (
        hvd.broadcast_object({"from": rank, "big": "x" * 10000} if rank == 1 else None, 1)["from"],
        hvd.allgather_object(("r", rank) if rank else "short"),
    )
    hvd.barrier()

    # --- an object that this job did not sign is not unpickled
    sealed = seal(rank)
    try:
        unseal(bytes([sealed[0] ^ 1]) + sealed[1:])
    except LakelensError as error:
        results["tampered object"] = str(error)

    # --- optimizers: one step from w = 0, gradient (rank + 1) * [3, 4]
    def step(make, passes=1, repeats=1, dtype="float32", gradient=(3.0, 4.0)):
        variable = keras.Variable([0.0, 0.0], dtype=dtype)
        optimizer = make()
        optimizer.build([variable])

        @tf.function
        def one():
            optimizer.apply([tf.constant(gradient) * (rank + 1)], [variable])

        for _ in range(repeats):
            one()
        return keras.ops.convert_to_numpy(variable).round(4).tolist()

    sgd = keras.optimizers.SGD
    results["optimizer average"] = step(lambda: hvd.DistributedOptimizer(sgd(1.0)))
    results["optimizer sum"] = step(lambda: hvd.DistributedOptimizer(sgd(1.0), op=hvd.Sum))
    results["optimizer fp16"] = step(lambda: hvd.DistributedOptimizer(sgd(1.0), compression=hvd.Compression.fp16))
    results["optimizer predivide"] = step(lambda: hvd.DistributedOptimizer(sgd(1.0), gradient_predivide_factor=2.0))
    results["optimizer clips the average"] = step(lambda: hvd.DistributedOptimizer(sgd(1.0, global_clipnorm=1.0)))
    three = lambda **options: hvd.DistributedOptimizer(sgd(1.0), backward_passes_per_step=3, **options)  # noqa: E731
    results["two of three passes"] = step(three, repeats=2)
    results["three of three passes"] = step(three, repeats=3)
    results["three passes averaged"] = step(lambda: three(average_aggregated_gradients=True), repeats=3)
    results["six passes"] = step(three, repeats=6)

    # An overflow on one rank only: every rank must skip the step.
    overflow = (float("inf"), 1.0) if rank == 1 else (1.0, 1.0)
    results["loss scale"] = step(
        lambda: hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(sgd(1.0), initial_scale=2.0)),
        gradient=overflow,
    )
    results["loss scale, no overflow"] = step(
        lambda: hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(sgd(1.0), initial_scale=2.0))
    )

    # --- sparse gradients through a model, dense and sparse alike
    def embedding(sparse_as_dense):
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [
                keras.Input((2,), dtype="int32"),
                keras.layers.Embedding(5, 2),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )
        model.compile(hvd.DistributedOptimizer(sgd(0.5), sparse_as_dense=sparse_as_dense), "mse")
        x = np.array([[0, 1], [1, 2]] if rank == 0 else [[3, 4], [4, 4]])
        model.fit(x, np.ones([2, 1]), batch_size=2, epochs=2, verbose=0)
        return [weight.round(5).tolist() for weight in model.get_weights()]

    results["embedding"] = embedding(False), embedding(True)
    results["embedding agrees"] = hvd.allgather_object(results["embedding"])

    # --- callbacks
    keras.utils.set_random_seed(100 + rank)
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(4),
            keras.layers.Dropout(0.2),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Nadam(0.01)), "mse", metrics=["mae"])
    before = hvd.allgather_object([weight.tolist() for weight in model.get_weights()])
    rates = []

    class Rates(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            rates.append(float(self.model.optimizer.learning_rate))

    started = []

    class First(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if not started:
                started.extend(weight.tolist() for weight in self.model.get_weights())

    rows = 8 if rank == 0 else 24  # unequal, so that averages must be weighted
    x = np.random.default_rng(rank).normal(size=(rows, 3)).astype("float32")
    y = x.sum(1, keepdims=True)
    history = model.fit(
        x,
        y,
        batch_size=rows // 4,
        epochs=3,
        verbose=0,
        validation_data=(x, y) if rank == 0 else None,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.LearningRateWarmupCallback(0.01, warmup_epochs=2),
            hvd.callbacks.MetricAverageCallback(),
            First(),
            Rates(),
            keras.callbacks.EarlyStopping(monitor="val_loss", patience=1, restore_best_weights=True),
        ],
    ).history
    results["initial weights differ"] = before[0] != before[1]
    results["initial weights after broadcast"] = hvd.allgather_object(started)
    results["histories"] = hvd.allgather_object(
        {k: [round(float(v), 5) for v in values] for k, values in history.items()}
    )
    results["rates"] = rates

    noisy = keras.Sequential([keras.Input((3,)), keras.layers.Dropout(0.5, seed=7 + rank)])
    noisy.compile(sgd(1.0), "mse")
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    broadcast.set_model(noisy)
    broadcast.on_train_begin()
    results["seeds after broadcast"] = hvd.allgather_object([int(v.numpy()[0]) for v in noisy.variables])

    class Fixed(keras.callbacks.Callback):
        model = None

    averaging = hvd.callbacks.MetricAverageCallback()
    averaging.set_model(model)
    for metric in model.metrics:
        metric.reset_state()
    model.evaluate(x, y, batch_size=rows, verbose=0)
    logs = {"loss": float(rank), "mae": float(rank), "only_here": 5.0} if rank else {"loss": 0.0, "mae": 0.0}
    averaging.on_epoch_end(0, logs)
    results["weighted metrics"] = logs

    # --- a policy that wraps the distributed optimizer from outside is refused
    half = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    half.dtype_policy = keras.DTypePolicy("mixed_float16")
    half.compile(hvd.DistributedOptimizer(sgd(1.0)), "mse")
    try:
        half.fit(x, y, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
        results["wrapped from outside"] = "accepted"
    except LakelensError as error:
        results["wrapped from outside"] = str(error)
    model.jit_compile = True
    averaging.set_model(model)
    results["jit"] = model.jit_compile

    hvd.shutdown()
    try:
        hvd.init()
    except LakelensError as error:
        results["init after shutdown"] = str(error)
    return results


@pytest.fixture(scope="module")
def results(two_ranks):
    return two_ranks[__name__]


def test_each_rank_knows_its_place(results):
    assert results["place"] == (0, 2, 0, 2, 0, 1, True)


def test_allreduce_combines_element_by_element(results):
    assert results["allreduce Average"] == [[1.5, -3.0]]
    assert results["allreduce Sum"] == [[3.0, -6.0]]
    assert results["allreduce Min"] == [[1.0, -4.0]]
    assert results["allreduce Max"] == [[2.0, -2.0]]
    assert results["allreduce Product"] == [[2.0, 8.0]]
    assert results["allreduce int64"] == [3]
    assert results["allreduce scaled"] == [60.0]
    assert results["allreduce numpy"] == [0.5]


def test_compressed_gradients_travel_as_halves_and_arrive_in_their_own_type(results):
    assert results["allreduce fp16"] == [0.75]
    assert results["allreduce fp16 type"] == "float32"


def test_a_group_of_dense_and_sparse_tensors_keeps_each_ones_shape(results):
    dense, sparse, scalar = results["grouped"]
    assert dense == [0.5, 0.5, 0.5]
    assert sparse == [[0.5, 0.5], [1.0, 1.0], [1.5, 1.5], [0.0, 0.0]]
    assert scalar == [[1.0]]
    assert results["grouped stays sparse"]


def test_allgather_joins_unequal_rows_in_the_order_of_ranks(results):
    assert results["allgather"] == [[0], [1], [1]]


def test_broadcast_gives_the_roots_value_to_all(results):
    assert results["broadcast"] == [1]
    assert results["broadcast_variables"] == [1.0, 1.0, 1.0, 1.0]


def test_objects_travel_signed_and_nothing_else_is_unpickled(results):
    assert results["objects"] == (1, ["short", ("r", 1)])
    assert "was not signed by this job; it was not unpickled" in results["tampered object"]


def test_the_optimizer_combines_gradients_before_it_applies_them(results):
    assert results["optimizer average"] == [-4.5, -6.0]
    assert results["optimizer sum"] == [-9.0, -12.0]
    assert results["optimizer fp16"] == [-4.5, -6.0]
    assert results["optimizer predivide"] == [-4.5, -6.0]


def test_gradients_are_clipped_after_they_are_combined(results):
    assert results["optimizer clips the average"] == pytest.approx([-0.6, -0.8])


def test_gradients_of_several_passes_are_added_up_before_they_travel(results):
    assert results["two of three passes"] == [0.0, 0.0]
    assert results["three of three passes"] == [-13.5, -18.0]
    assert results["three passes averaged"] == [-4.5, -6.0]
    assert results["six passes"] == [-27.0, -36.0]


def test_an_overflow_on_one_rank_skips_the_step_on_all(results):
    assert results["loss scale"] == [0.0, 0.0]
    assert results["loss scale, no overflow"] == [-2.25, -3.0]


def test_a_policy_that_wraps_the_distributed_optimizer_from_outside_is_refused(results):
    assert (
        "pass hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))"
        in results["wrapped from outside"]
    )


def test_sparse_gradients_train_like_dense_ones(results):
    sparse, dense = results["embedding"]
    for one, other in zip(sparse, dense, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert results["embedding agrees"][0] == results["embedding agrees"][1]


def test_ranks_start_from_the_roots_weights(results):
    assert results["initial weights differ"]
    first, second = results["initial weights after broadcast"]
    assert first == second


def test_noise_stays_each_ranks_own_when_weights_are_broadcast(results):
    assert results["seeds after broadcast"] == [[7], [8]]


def test_metrics_and_with_them_early_stopping_agree_on_all_ranks(results):
    first, second = results["histories"]
    shared = {"loss", "mae", "val_loss", "val_mae"}
    assert shared <= set(first)
    assert {name: first[name] for name in shared} == {name: second[name] for name in shared}


def test_metrics_are_averaged_by_the_rows_that_each_rank_saw(results):
    # 8 rows say 0, 24 rows say 1.
    assert results["weighted metrics"] == {"loss": 0.75, "mae": 0.75, "only_here": 5.0}


def test_the_learning_rate_warms_up_from_one_ranks_to_alls(results):
    rates = results["rates"]
    assert rates[0] == pytest.approx(0.01 / 2 * (0.25 * 1 / 2 + 1))
    assert rates[7] == pytest.approx(0.01, rel=1e-5)
    assert rates == sorted(rates)


def test_xla_is_switched_off_where_horovod_has_no_kernels(results):
    assert results["jit"] is False


def test_a_rank_joins_its_world_once(results):
    assert "a rank joins its world once" in results["init after shutdown"]


# --- without other ranks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"op": "Average"}, "op='Average': gradients are combined by hvd.Average or hvd.Sum"),
        ({"gradient_predivide_factor": 0}, "gradient_predivide_factor=0: must be above 0"),
        ({"backward_passes_per_step": 0}, "backward_passes_per_step=0: must be at least 1"),
    ],
)
def test_options_that_break_a_rule_are_refused(options, words):
    import lakelens.hvd as hvd

    with pytest.raises(InvalidArgumentError, match=words):
        hvd.DistributedOptimizer("sgd", **options)


def test_an_optimizer_is_wrapped_once():
    import keras

    import lakelens.hvd as hvd

    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    with pytest.raises(InvalidArgumentError, match="is distributed already"):
        hvd.DistributedOptimizer(optimizer)
    with pytest.raises(InvalidArgumentError, match="wrap the LossScaleOptimizer"):
        hvd.DistributedOptimizer(
            keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)))
        )


def test_a_distributed_model_saves_and_loads_as_a_plain_one(tmp_path):
    import keras

    import lakelens.hvd as hvd

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.1)), "mse")
    model.fit(np.ones([4, 3]), np.ones([4, 1]), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is keras.optimizers.Adam
    assert int(loaded.optimizer.iterations) == 1
    for mine, theirs in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(mine), keras.ops.convert_to_numpy(theirs))


def test_collectives_before_init_say_so(monkeypatch):
    import lakelens.hvd as hvd
    from lakelens.errors import LaunchError

    hvd.shutdown()  # of the world of one that other tests in this process may have joined
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    with pytest.raises(LaunchError, match=r"call hvd.init\(\) before"):
        hvd.allreduce(np.ones(1))
    with pytest.raises(InvalidArgumentError, match="root_rank=2: ranks are 0 to 1"):
        hvd.broadcast(np.ones(1), 2)
