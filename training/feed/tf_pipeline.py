"""A tf.data pipeline around an iterator of batches: whole batches in order, each iteration with the next epoch."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...freed_memory import keep_again
from .plan.feed_plan import Position, Shard
from .read_options import Preprocess, available_cores

if TYPE_CHECKING:
    import tensorflow as tf

# The mark of a batch that is not the last of its epoch.
_WITHIN_EPOCH = -1


def dataset_of(
    shard: Shard,
    signature: Any,
    batches: Callable[[Shard], Iterator[Any]],
    preprocess: Preprocess | None = None,
    *,
    seeded: bool = False,
) -> tf.data.Dataset:
    """Makes a pipeline of batches, whole and in order, of known length.

    An iteration begins with the first epoch that none before it was taken through to its end, unless a start was given:
    then each begins there. A batch counts as taken once it leaves the pipeline, not once it is read ahead, so that a
    look at the first batch changes nothing, and all ranks, which take the same steps, agree on the epoch.
    """
    import tensorflow as tf

    epochs = _Epochs()
    is_pinned = shard.reading.start is not None
    steps = shard.batches.steps()

    def generate() -> Iterator[Any]:
        this = shard if is_pinned else replace(shard, start=Position(epochs.following))
        first = this.start.epoch
        # Not a loop, whose variable would keep the last batch while the next one is waited for.
        yield from map(
            lambda batch, seed, count: (batch, seed, _WITHIN_EPOCH if count % steps else first + count // steps),
            batches(this),
            seeds_of(this),
            itertools.count(1),
        )

    def take(batch: Any, _seed: Any, following: Any) -> Any:
        tf.cond(
            following == _WITHIN_EPOCH, lambda: following, lambda: tf.numpy_function(epochs.end, [following], tf.int64)
        )
        return batch

    described = (signature, tf.TensorSpec((2,), tf.int32), tf.TensorSpec((), tf.int64))
    dataset = tf.data.Dataset.from_generator(generate, output_signature=described)
    keep_again()  # the first dataset of a process lets glibc trim its heap (tensorflow#37653)
    if preprocess is not None:

        def preprocessed(batch: Any, seed: Any, following: Any) -> Any:
            images, target = preprocess(batch[0], batch[1], *([seed] if seeded else []))
            return (images, target, batch[2]), seed, following

        dataset = dataset.map(preprocessed, num_parallel_calls=preprocess_calls())
    if shard.steps is not None:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(shard.steps))
    settings = tf.data.Options()
    settings.deterministic = True
    settings.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    # TensorFlow would add a prefetch behind `take`, which would count the batches that it reads ahead as taken.
    settings.experimental_optimization.inject_prefetch = False
    return dataset.prefetch(shard.reading.prefetch).map(take).with_options(settings)


def seeds_of(shard: Shard) -> Iterator[npt.NDArray[np.int32]]:
    """Yields the seed of each batch, int32 [2]: it differs by batch, epoch and rank, and is the same after a resume."""
    batches, start = shard.batches, shard.start
    own = zlib.crc32(f"{shard.plan.order.seed}/{batches.rank}".encode()) >> 1
    first = start.epoch * batches.steps() + start.row // batches.global_batch_size
    return (np.array([own, number], np.int32) for number in itertools.count(first))


class _Epochs:
    """The epochs that a dataset's iterations have been through."""

    following = 0  # The first epoch that no iteration has been taken through to its end

    def end(self, following: np.int64) -> np.int64:
        """Notes that the epoch before `following` has been taken to its end."""
        self.following = max(self.following, int(following))
        return following


def preprocess_calls() -> int:
    """Calls of `preprocess` at once: few, since an op on a whole batch uses several cores already."""
    return min(4, max(2, available_cores()))
