"""Collectives of every type, tapes and grouped gradients on two real ranks: one launch, a test for each result."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.horovod


def refusal(call):
    """The type and message of the error that a call ends in."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - what it is, is the result
        return type(error).__name__, str(error)
    return "accepted", ""


def collectives(rank):
    """Rank r holds r + 1."""
    import tensorflow as tf

    import lakelens.hvd as hvd

    found = {}
    for kind in ("bfloat16", "float64", "uint16", "int16", "uint32", "uint8"):
        op = hvd.Average if tf.as_dtype(kind).is_floating else hvd.Sum
        reduced = hvd.allreduce(tf.cast([rank + 1], kind), op=op)
        found[f"allreduce {kind}"] = reduced.dtype.name, float(reduced[0])
    mixed = [tf.constant([1.0], kind) * (rank + 1) for kind in ("float32", "float64", "float32", "bfloat16")]
    reduced = hvd.grouped_allreduce(mixed, "mixed types", op=hvd.Sum)
    found["mixed types"] = [(tensor.dtype.name, float(tensor[0])) for tensor in reduced]
    found["average=False"] = hvd.allreduce(tf.constant([1.0]), average=False).numpy().tolist()
    found["scaled integers"] = hvd.allreduce(tf.constant([4, 6]), op=hvd.Sum, postscale_factor=0.5).numpy().tolist()
    found["average of integers"] = refusal(lambda: hvd.allreduce(tf.constant([rank + 1])))
    found["sum of booleans"] = refusal(lambda: hvd.allreduce(tf.constant([True]), op=hvd.Sum))
    found["text"] = refusal(lambda: hvd.broadcast(tf.constant(["a"]), 0))
    found["both ways"] = refusal(lambda: hvd.allreduce(tf.constant([1.0]), average=True, op=hvd.Sum))
    found["other shapes"] = refusal(lambda: hvd.allreduce(tf.ones([2 + rank]), "shapes"))
    found["after an error"] = hvd.allreduce(tf.ones([1]), op=hvd.Sum).numpy().tolist()
    for kind in ("bool", "uint32", "bfloat16"):
        moved = hvd.broadcast(tf.cast([rank], kind), 1)
        found[f"broadcast {kind}"] = moved.dtype.name, float(tf.cast(moved, tf.float32)[0])
    found["gathered booleans"] = hvd.allgather(tf.constant([bool(rank)])).numpy().tolist()
    found["gathered group"] = [
        tensor.numpy().tolist() for tensor in hvd.grouped_allgather([tf.constant([rank]), tf.constant([[rank]])], "g")
    ]
    found["all to all"] = hvd.alltoall(tf.constant([rank * 10, rank * 10 + 1])).numpy().tolist()
    received, counts = hvd.alltoall(tf.range(3) + 10 * rank, splits=[1, 2] if rank == 0 else [3, 0])
    found["all to all, split"] = hvd.allgather_object((received.numpy().tolist(), counts.numpy().tolist()))
    found["uneven all to all"] = refusal(lambda: hvd.alltoall(tf.range(3)))
    scattered = hvd.reducescatter(tf.constant([[1.0], [2.0], [3.0]]) * (rank + 1), op=hvd.Sum)
    found["reduced and scattered"] = hvd.allgather_object(scattered.numpy().tolist())
    found["scattered averages of integers"] = refusal(lambda: hvd.reducescatter(tf.constant([1, 2])))
    found["about Horovod"] = hvd.gloo_built(), hvd.mpi_enabled(), hvd.is_homogeneous()
    return found


def gradients(rank):
    """Tapes and optimizers; a model whose variables have two types."""
    import keras
    import tensorflow as tf

    import lakelens.hvd as hvd

    found = {}
    variables = {"w": tf.Variable([1.0, 2.0]), "unused": tf.Variable([1.0]), "e": tf.Variable(tf.ones([3, 2]))}
    with tf.GradientTape() as tape:
        rows = tf.gather(variables["e"], [rank])  # its gradient is sparse
        loss = (rank + 1) * (tf.reduce_sum(variables["w"] ** 2) + tf.reduce_sum(rows))
    tape = hvd.DistributedGradientTape(tape)
    grads = tape.gradient(loss, variables)
    found["tape"] = grads["w"].numpy().tolist(), grads["unused"], tf.convert_to_tensor(grads["e"]).numpy().tolist()
    found["tape keeps sparse"] = isinstance(grads["e"], tf.IndexedSlices)

    @tf.function
    def traced():
        with tf.GradientTape() as inner:
            inner_loss = (rank + 1) * tf.reduce_sum(variables["w"])
        return hvd.DistributedGradientTape(inner, op=hvd.Sum).gradient(inner_loss, variables["w"])

    found["traced tape"] = [traced().numpy().tolist() for _ in range(2)]

    def stepped(optimizer, kinds=("float32", "float32", "float32")):
        held = [keras.Variable([0.0], dtype=kind) for kind in kinds]
        optimizer.build(held)

        @tf.function
        def step():
            optimizer.apply([tf.cast([(rank + 1.0) * (i + 1)], v.dtype) for i, v in enumerate(held)], held)

        step()
        return [float(v.numpy()[0]) for v in held]

    sgd = keras.optimizers.SGD
    for groups in (0, 1, 2, 9):
        found[f"{groups} groups"] = stepped(hvd.DistributedOptimizer(sgd(1.0), num_groups=groups))
    found["two types"] = stepped(hvd.DistributedOptimizer(sgd(1.0)), ("float32", "float64", "float32"))
    original = hvd.DistributedOptimizer(sgd(1.0), op=hvd.Sum)
    found["copy"] = stepped(type(original).from_config(original.get_config()))

    def model_steps(**options):
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [
                *(keras.Input((2,), dtype="int32"), keras.layers.Embedding(5, 2), keras.layers.Flatten()),
                keras.layers.Dense(1),
            ]
        )
        optimizer = keras.optimizers.LossScaleOptimizer(sgd(0.5), initial_scale=4.0)
        model.compile(hvd.DistributedOptimizer(optimizer, **options), "mse")
        x = np.array([[0, 1], [1, 2]] if rank == 0 else [[3, 4], [4, 4]])
        model.fit(x, np.ones([2, 1]), batch_size=1, epochs=3, shuffle=False, verbose=0)
        return [weight.round(5).tolist() for weight in model.get_weights()]

    # Six batches of one row, two at a time and averaged, are three batches of two rows.
    found["sparse, scaled and aggregated"] = model_steps(backward_passes_per_step=2, average_aggregated_gradients=True)
    found["aggregated on all ranks"] = hvd.allgather_object(found["sparse, scaled and aggregated"])
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            *(keras.Input((2,), dtype="int32"), keras.layers.Embedding(5, 2), keras.layers.Flatten()),
            keras.layers.Dense(1),
        ]
    )
    model.compile(sgd(0.5), "mse")
    model.fit(
        np.array([[0, 1], [1, 2], [3, 4], [4, 4]]), np.ones([4, 1]), batch_size=4, epochs=3, shuffle=False, verbose=0
    )
    found["one process on all rows"] = [weight.round(5).tolist() for weight in model.get_weights()]
    return found


def operations(rank):
    """The names of the operations of traced steps, where rank 0 has built one model and one optimizer more."""
    import keras
    import tensorflow as tf

    import lakelens.hvd as hvd

    def build():
        layers = [keras.Input((2,), dtype="int32"), keras.layers.Embedding(5, 2), keras.layers.Dense(1)]
        return keras.Sequential(layers)

    if rank == 0:
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

    found = {}
    for step in (with_optimizer, with_two_tapes):
        graph = tf.function(step).get_concrete_function().graph
        names = [operation.name for operation in graph.get_operations() if operation.type.startswith("Horovod")]
        found[step.__name__] = hvd.allgather_object(names)
    return found


def on_two_ranks():
    import lakelens.hvd as hvd

    hvd.init()
    return {**collectives(hvd.rank()), **gradients(hvd.rank()), **operations(hvd.rank())}


@pytest.fixture(scope="module")
def results(two_ranks):
    return two_ranks[__name__]


def test_every_type_of_number_is_combined_and_comes_back_as_itself(results):
    assert results["allreduce bfloat16"] == ("bfloat16", 1.5)
    assert results["allreduce float64"] == ("float64", 1.5)
    for kind in ("uint16", "int16", "uint32", "uint8"):
        assert results[f"allreduce {kind}"] == (kind, 3.0)
    assert results["mixed types"] == [("float32", 3.0), ("float64", 3.0), ("float32", 3.0), ("bfloat16", 3.0)]


def test_an_average_of_whole_numbers_is_refused_because_it_would_lose_its_fraction(results):
    for name in ("average of integers", "scattered averages of integers"):
        kind, message = results[name]
        assert kind == "InvalidArgumentError"
        assert "would lose its fraction; tf.cast the value to float32, or use op=hvd.Sum" in message
    assert results["scaled integers"] == [4, 6]


def test_what_cannot_travel_or_be_combined_is_named(results):
    assert results["sum of booleans"][1].startswith("bool cannot be combined over ranks, only numbers")
    assert results["text"][1].startswith("string cannot travel between ranks; Horovod moves uint8")
    assert results["both ways"][1].endswith("say the same thing; pass op alone")


def test_the_older_way_to_ask_for_a_sum_works(results):
    assert results["average=False"] == [2.0]


def test_shapes_that_differ_between_ranks_are_an_error_on_each_and_the_world_goes_on(results):
    kind, message = results["other shapes"]
    assert kind == "FailedPreconditionError"
    assert "Mismatched ALLREDUCE tensor shapes: One rank sent a tensor of shape" in message
    assert results["after an error"] == [2.0]


def test_values_move_in_every_type_that_fits_one_of_horovods(results):
    assert results["broadcast bool"] == ("bool", 1.0)
    assert results["broadcast uint32"] == ("uint32", 1.0)
    assert results["broadcast bfloat16"] == ("bfloat16", 1.0)
    assert results["gathered booleans"] == [False, True]
    assert results["gathered group"] == [[0, 1], [[0], [1]]]


def test_rows_are_exchanged_between_all_ranks(results):
    assert results["all to all"] == [0, 10]
    assert results["all to all, split"] == [([0, 10, 11, 12], [1, 3]), ([1, 2], [2, 0])]
    assert "3 rows do not divide among 2 ranks; pass splits" in results["uneven all to all"][1]


def test_each_rank_gets_its_share_of_the_combined_rows(results):
    assert results["reduced and scattered"] == [[[3.0], [6.0]], [[9.0]]]


def test_questions_about_the_build_are_horovods_to_answer(results):
    assert results["about Horovod"] == (True, False, True)


def test_a_tape_combines_gradients_and_keeps_their_structure(results):
    dense, unused, sparse = results["tape"]
    assert dense == [3.0, 6.0]
    assert unused is None
    assert sparse == [[0.5, 0.5], [1.0, 1.0], [0.0, 0.0]]
    assert results["tape keeps sparse"]
    assert results["traced tape"] == [[3.0, 3.0], [3.0, 3.0]]


@pytest.mark.parametrize("groups", [0, 1, 2, 9])
def test_the_number_of_groups_does_not_change_the_gradients(results, groups):
    assert results[f"{groups} groups"] == [-1.5, -3.0, -4.5]


def test_gradients_of_several_types_are_combined_in_one_step(results):
    assert results["two types"] == [-1.5, -3.0, -4.5]


def test_a_copy_of_a_distributed_optimizer_combines_gradients_too(results):
    assert results["copy"] == [-3.0, -6.0, -9.0]


def test_aggregated_sparse_gradients_under_loss_scaling_train_like_one_process_on_all_rows(results):
    first, second = results["aggregated on all ranks"]
    assert first == second
    for mine, theirs in zip(results["sparse, scaled and aggregated"], results["one process on all rows"], strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-5)


@pytest.mark.parametrize(("step", "count"), [("with_optimizer", 3), ("with_two_tapes", 6)])
def test_operations_are_called_alike_on_a_rank_that_has_built_one_model_more(results, step, count):
    first, second = results[step]
    assert first == second
    assert len(first) == count
