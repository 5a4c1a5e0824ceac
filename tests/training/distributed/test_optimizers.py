"""Optimizers and tapes that combine gradients, on two real ranks and without other ranks."""

from __future__ import annotations

import numpy as np
import pytest

from lakelens.errors import InvalidArgumentError

pytestmark = pytest.mark.horovod


def weights_after_steps(make, repeats=1, kinds=("float32",), gradients=((3.0, 4.0),)):
    """Weights of zero after steps with SGD at a rate of 1, of gradients that are r + 1 times those given on rank r."""
    import keras
    import tensorflow as tf

    import lakelens.hvd as hvd

    hvd.init()
    weights = [keras.Variable([0.0] * len(given), dtype=kind) for kind, given in zip(kinds, gradients, strict=True)]
    optimizer = make(hvd, keras.optimizers)
    optimizer.build(weights)

    @tf.function
    def step():
        made = [tf.constant(given) * (hvd.rank() + 1) for given in gradients]
        optimizer.apply([tf.cast(each, weight.dtype) for each, weight in zip(made, weights, strict=True)], weights)

    for _ in range(repeats):
        step()
    found = [keras.ops.convert_to_numpy(weight).round(4).tolist() for weight in weights]
    return found if len(found) > 1 else found[0]


def distributed(rate=1.0, scale=0.0, **options):
    def make(hvd, optimizers):
        plain = optimizers.SGD(rate)
        scaled = optimizers.LossScaleOptimizer(plain, initial_scale=scale) if scale else plain
        return hvd.DistributedOptimizer(scaled, **options)

    return make


def copy_of_sum(hvd, optimizers):
    original = hvd.DistributedOptimizer(optimizers.SGD(1.0), op=hvd.Sum)
    return type(original).from_config(original.get_config())


def clipped(hvd, optimizers):
    return hvd.DistributedOptimizer(optimizers.SGD(1.0, global_clipnorm=1.0))


def in_halves(hvd, optimizers):
    return hvd.DistributedOptimizer(optimizers.SGD(1.0), compression=hvd.Compression.fp16)


@pytest.mark.parametrize(
    ("make", "repeats", "expected"),
    [
        (distributed(), 1, [-4.5, -6.0]),
        (copy_of_sum, 1, [-9.0, -12.0]),
        (in_halves, 1, [-4.5, -6.0]),
        (distributed(gradient_predivide_factor=2.0), 1, [-4.5, -6.0]),
        (clipped, 1, [-0.6, -0.8]),  # the average, not each rank's gradient
        (distributed(scale=2.0), 1, [-2.25, -3.0]),  # gradients that were never multiplied by the scale of 2
        # Gradients of several passes are added up before they travel.
        (distributed(backward_passes_per_step=3), 2, [0.0, 0.0]),
        (distributed(backward_passes_per_step=3, average_aggregated_gradients=True), 3, [-4.5, -6.0]),
        (distributed(backward_passes_per_step=3), 6, [-27.0, -36.0]),
    ],
)
def test_the_optimizer_combines_gradients_before_it_applies_them(two_ranks, make, repeats, expected):
    for found in two_ranks.run(weights_after_steps, make, repeats):
        assert found == pytest.approx(expected)


@pytest.mark.parametrize("kinds", [("float32",) * 3, ("float32", "float64", "float32")])
@pytest.mark.parametrize("groups", [0, 1, 2, 9])
def test_neither_the_number_of_groups_nor_several_types_change_the_gradients(two_ranks, groups, kinds):
    gradients = ((1.0,), (2.0,), (3.0,))
    found = two_ranks.run(weights_after_steps, distributed(num_groups=groups), 1, kinds, gradients)
    assert found == [[[-1.5], [-3.0], [-4.5]]] * 2


def overflowing(make):
    import lakelens.hvd as hvd

    hvd.init()
    return weights_after_steps(make, gradients=((float("inf") if hvd.rank() == 1 else 1.0, 1.0),))


def test_an_overflow_on_one_rank_skips_the_step_on_all(two_ranks):
    assert two_ranks.run(overflowing, distributed(scale=2.0)) == [[0.0, 0.0]] * 2


def tapes():
    import tensorflow as tf

    import lakelens.hvd as hvd

    hvd.init()
    factor = hvd.rank() + 1
    variables = {"w": tf.Variable([1.0, 2.0]), "unused": tf.Variable([1.0]), "e": tf.Variable(tf.ones([3, 2]))}
    with tf.GradientTape() as tape:
        rows = tf.gather(variables["e"], [hvd.rank()])  # its gradient is sparse
        loss = factor * (tf.reduce_sum(variables["w"] ** 2) + tf.reduce_sum(rows))
    grads = hvd.DistributedGradientTape(tape).gradient(loss, variables)

    @tf.function
    def traced():
        with tf.GradientTape() as inner:
            inner_loss = factor * tf.reduce_sum(variables["w"])
        return hvd.DistributedGradientTape(inner, op=hvd.Sum).gradient(inner_loss, variables["w"])

    assert isinstance(grads["e"], tf.IndexedSlices)
    sparse = tf.convert_to_tensor(grads["e"]).numpy().tolist()
    return grads["w"].numpy().tolist(), grads["unused"], sparse, [traced().numpy().tolist() for _ in range(2)]


def test_a_tape_combines_gradients_and_keeps_their_structure(two_ranks):
    sparse = [[0.5, 0.5], [1.0, 1.0], [0.0, 0.0]]
    assert two_ranks.run(tapes) == [([3.0, 6.0], None, sparse, [[3.0, 3.0]] * 2)] * 2


def embedding_after(rows_of_rank, rows_per_batch, make):
    """Weights of a model with an embedding after three epochs."""
    import keras

    import lakelens.hvd as hvd

    hvd.init()
    keras.utils.set_random_seed(0)
    layers = [keras.Input((2,), dtype="int32"), keras.layers.Embedding(5, 2), keras.layers.Flatten()]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile(make(hvd, keras.optimizers), "mse")
    rows = np.array(rows_of_rank[hvd.rank()])
    model.fit(rows, np.ones([len(rows), 1]), batch_size=rows_per_batch, epochs=3, shuffle=False, verbose=0)
    return model.get_weights()


@pytest.mark.parametrize(
    ("rows_per_batch", "make"),
    [
        (2, distributed(0.5)),
        (2, distributed(0.5, sparse_as_dense=True)),
        # Six batches of one row, two at a time and averaged, are three batches of two rows.
        (1, distributed(0.5, 4.0, backward_passes_per_step=2, average_aggregated_gradients=True)),
    ],
    ids=["sparse", "dense", "aggregated and scaled"],
)
def test_gradients_of_an_embedding_train_like_one_process_on_all_rows(two_ranks, rows_per_batch, make):
    rows = ([[0, 1], [1, 2]], [[3, 4], [4, 4]])
    expected, _ = two_ranks.run(embedding_after, [rows[0] + rows[1]] * 2, 4, lambda _, optimizers: optimizers.SGD(0.5))
    first, second = two_ranks.run(embedding_after, rows, rows_per_batch, make)
    for mine, theirs, wanted in zip(first, second, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
        np.testing.assert_allclose(mine, wanted, atol=2e-5)


def operations():
    """The names of the operations of traced steps, where rank 0 has built one model and one optimizer more."""
    import keras
    import tensorflow as tf

    import lakelens.hvd as hvd

    hvd.init()

    def build():
        layers = [keras.Input((2,), dtype="int32"), keras.layers.Embedding(5, 2), keras.layers.Dense(1)]
        return keras.Sequential(layers)

    if hvd.rank() == 0:
        build()
        keras.optimizers.SGD(0.5)
    model = build()
    weights = model.trainable_variables
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5))
    optimizer.build(weights)

    def gradients_of(tape):
        with tape:
            loss = tf.reduce_sum(model(tf.constant([[0, 1]])))
        return tape.gradient(loss, weights)

    def with_optimizer():
        optimizer.apply(gradients_of(tf.GradientTape()), weights)

    def with_two_tapes():
        for _ in range(2):
            gradients_of(hvd.DistributedGradientTape(tf.GradientTape()))

    graphs = [tf.function(step).get_concrete_function().graph for step in (with_optimizer, with_two_tapes)]
    return [
        [operation.name for operation in graph.get_operations() if operation.type.startswith("Horovod")]
        for graph in graphs
    ]


def test_operations_are_called_alike_on_a_rank_that_has_built_one_model_more(two_ranks):
    first, second = two_ranks.run(operations)
    assert first == second
    assert [len(names) for names in first] == [3, 6]


# --- without other ranks ----------------------------------------------------------------------------------------------


def test_a_loss_scale_around_a_distributed_optimizer_is_refused():
    import keras

    import lakelens.hvd as hvd

    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    with pytest.raises(InvalidArgumentError, match="wrap the LossScaleOptimizer"):
        hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))


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
