"""Collectives on two real ranks, where rank r holds r + 1, and without other ranks."""

from __future__ import annotations

import re

import numpy as np
import pytest

from lakelens.errors import InvalidArgumentError, LaunchError

pytestmark = pytest.mark.horovod


def plain(value):
    """Lists of numbers in the place of tensors; sparse ones stay apart from dense ones."""
    import tensorflow as tf

    if isinstance(value, tf.IndexedSlices):
        return {"sparse": tf.convert_to_tensor(value).numpy().tolist()}
    if isinstance(value, tf.Tensor):
        return value.numpy().tolist() if value.dtype != tf.bfloat16 else tf.cast(value, tf.float32).numpy().tolist()
    return [plain(part) for part in value] if isinstance(value, (list, tuple)) else value


def in_the_world(call):
    import tensorflow as tf

    import lakelens.hvd as hvd

    hvd.init()
    hvd.init()  # does nothing
    return plain(call(hvd, tf, hvd.rank()))


def refusal(call):
    """The type and message of the error that a call ends in."""
    try:
        in_the_world(call)
    except Exception as error:  # noqa: BLE001 - what it is, is the result
        return f"{type(error).__name__}: {error}"
    return "accepted"


def one_and_two(tf, rank, kind="float32"):
    return tf.cast([rank + 1], kind)


def typed(tensor):
    return tensor.dtype.name, tensor


def combined(kind, op, **options):
    return lambda hvd, tf, rank: typed(hvd.allreduce(one_and_two(tf, rank, kind), op=getattr(hvd, op), **options))


def of_matrix(op):
    return lambda hvd, tf, rank: hvd.allreduce(tf.constant([[1.0, -2.0]]) * (rank + 1), op=getattr(hvd, op))


def moved(kind):
    return lambda hvd, tf, rank: typed(hvd.broadcast(tf.cast([rank], kind), 1))


def grouped(hvd, tf, rank):
    rows = [rank, 2]
    sparse = tf.IndexedSlices(tf.ones([2, 2]) * (rank + 1), tf.constant(rows), dense_shape=tf.constant([4, 2]))
    return hvd.grouped_allreduce([tf.ones([3]) * rank, sparse, tf.ones([1, 1])], "mixed")


def grouped_types(hvd, tf, rank):
    kinds = ("float32", "float64", "float32", "bfloat16")
    sums = hvd.grouped_allreduce([one_and_two(tf, rank, kind) for kind in kinds], "mixed types", op=hvd.Sum)
    return [typed(tensor) for tensor in sums]


def variables(hvd, tf, rank):
    import keras

    found = [tf.Variable([float(rank)]), keras.Variable([rank], dtype="int64")]
    found += [tf.Variable(tf.cast([rank], kind)) for kind in ("uint32", "bfloat16")]
    hvd.broadcast_variables(found, 1)
    return [float(tf.cast(tf.convert_to_tensor(each), tf.float32)[0]) for each in found]


def objects(hvd, tf, rank):
    sent = {"from": rank, "big": "x" * 10000} if rank == 1 else None
    return hvd.broadcast_object(sent, 1)["from"], hvd.allgather_object(("r", rank) if rank else "short")


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (of_matrix("Average"), [[1.5, -3.0]]),
        (of_matrix("Sum"), [[3.0, -6.0]]),
        (of_matrix("Min"), [[1.0, -4.0]]),
        (of_matrix("Max"), [[2.0, -2.0]]),
        (of_matrix("Product"), [[2.0, 8.0]]),
        (combined("int64", "Sum"), ["int64", [3]]),
        (combined("bfloat16", "Average"), ["bfloat16", [1.5]]),
        (combined("uint16", "Sum"), ["uint16", [3]]),
        (combined("uint32", "Sum"), ["uint32", [3]]),
        (combined("float32", "Sum", prescale_factor=2.0, postscale_factor=10.0), ["float32", [60.0]]),
        (combined("int32", "Sum", prescale_factor=4.0, postscale_factor=0.5), ["int32", [6]]),
        (lambda hvd, tf, rank: hvd.allreduce(np.array([rank], np.float32)), [0.5]),
        (lambda hvd, tf, rank: hvd.allreduce(tf.constant([1.0]), average=False), [2.0]),
        (
            # Compressed values travel as halves and arrive in their own type.
            lambda hvd, tf, rank: typed(hvd.allreduce(one_and_two(tf, rank) / 2, compression=hvd.Compression.fp16)),
            ["float32", [0.75]],
        ),
        (grouped, [[0.5] * 3, {"sparse": [[0.5, 0.5], [1.0, 1.0], [1.5, 1.5], [0.0, 0.0]]}, [[1.0]]]),
        (grouped_types, [["float32", [3.0]], ["float64", [3.0]], ["float32", [3.0]], ["bfloat16", [3.0]]]),
        (lambda hvd, tf, rank: hvd.allgather(tf.fill([rank + 1, 1], rank)), [[0], [1], [1]]),
        (lambda hvd, tf, rank: hvd.allgather(tf.constant([bool(rank)])), [False, True]),
        (
            lambda hvd, tf, rank: hvd.grouped_allgather([tf.constant([rank]), tf.constant([[rank]])], "g"),
            [[0, 1], [[0], [1]]],
        ),
        (moved("int32"), ["int32", [1]]),
        (moved("bool"), ["bool", [True]]),
        (moved("uint32"), ["uint32", [1]]),
        (moved("bfloat16"), ["bfloat16", [1.0]]),
        (variables, [1.0] * 4),
        (objects, [1, ["short", ["r", 1]]]),
        (lambda hvd, tf, rank: hvd.barrier(), None),
        (lambda hvd, tf, rank: (hvd.gloo_built(), hvd.mpi_enabled(), hvd.is_homogeneous()), [True, False, True]),
    ],
)
def test_every_rank_gets_the_same(two_ranks, call, expected):
    assert two_ranks.run(in_the_world, call) == [expected] * 2


@pytest.mark.parametrize(
    ("call", "first", "second"),
    [
        (
            lambda hvd, tf, rank: [
                *(rank, hvd.size(), hvd.local_rank(), hvd.local_size()),
                *(hvd.cross_rank(), hvd.cross_size(), hvd.is_initialized()),
            ],
            [0, 2, 0, 2, 0, 1, True],
            [1, 2, 1, 2, 0, 1, True],
        ),
        (lambda hvd, tf, rank: hvd.alltoall(tf.constant([rank * 10, rank * 10 + 1])), [0, 10], [1, 11]),
        (
            lambda hvd, tf, rank: hvd.alltoall(tf.range(3) + 10 * rank, splits=[3, 0] if rank else [1, 2]),
            [[0, 10, 11, 12], [1, 3]],
            [[1, 2], [2, 0]],
        ),
        (
            lambda hvd, tf, rank: hvd.reducescatter(tf.constant([[1.0], [2.0], [3.0]]) * (rank + 1), op=hvd.Sum),
            [[3.0], [6.0]],
            [[9.0]],
        ),
    ],
    ids=["place", "all to all", "all to all, split", "reduced and scattered"],
)
def test_each_rank_gets_its_own(two_ranks, call, first, second):
    assert two_ranks.run(in_the_world, call) == [first, second]


LOST_FRACTION = "InvalidArgumentError: an average of int32 would lose its fraction; tf.cast the value to float32"


def unsigned(hvd, tf, rank):
    from lakelens.training.distributed.objects import seal, unseal

    sealed = seal(rank)
    unseal(bytes([sealed[0] ^ 1]) + sealed[1:])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (combined("int32", "Average"), LOST_FRACTION),
        (lambda hvd, tf, rank: hvd.reducescatter(tf.constant([1, 2])), LOST_FRACTION),
        (combined("bool", "Sum"), "InvalidArgumentError: bool cannot be combined over ranks"),
        (lambda hvd, tf, rank: hvd.broadcast(tf.constant(["a"]), 0), "InvalidArgumentError: string cannot travel"),
        (combined("float32", "Sum", average=True), "InvalidArgumentError.*say the same thing; pass op alone"),
        (lambda hvd, tf, rank: hvd.alltoall(tf.range(3)), "InvalidArgumentError.*3 rows do not divide among 2 ranks"),
        (lambda hvd, tf, rank: hvd.allreduce(tf.ones([2 + rank]), "shapes"), "Mismatched ALLREDUCE tensor shapes"),
        (unsigned, "LaunchError.*was not signed by this job; it was not unpickled"),
    ],
)
def test_what_cannot_be_combined_or_sent_is_an_error_on_each_rank_and_the_world_goes_on(two_ranks, call, words):
    for message in two_ranks.run(refusal, call):
        assert re.search(words, message)
    assert two_ranks.run(in_the_world, of_matrix("Sum")) == [[[3.0, -6.0]]] * 2


def test_collectives_before_init_say_so(monkeypatch):
    import lakelens.hvd as hvd

    hvd.shutdown()  # of the world of one that other tests in this process may have joined
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    with pytest.raises(LaunchError, match=r"call hvd.init\(\) before"):
        hvd.allreduce(np.ones(1))
    with pytest.raises(InvalidArgumentError, match="root_rank=2: ranks are 0 to 1"):
        hvd.broadcast(np.ones(1), 2)
