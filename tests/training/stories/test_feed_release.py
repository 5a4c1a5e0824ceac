"""Reading that ends, in whatever way, lets go of threads and row groups at once, without a garbage collection."""

from __future__ import annotations

import gc
import operator
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from feed_tables import append, changed, encoded, image_rows, write_layout
from leftovers import feed_threads, wait_until

from lakelens import DeltaFeed
from lakelens.errors import BadRowError
from lakelens.training.feed.image_batches import DecodedBatch
from lakelens.training.feed.image_rows import StoredBatch
from lakelens.training.feed.rank_batches import BatchReader, RowBatch
from lakelens.training.feed.reading import LaneRows, RowGroup

HELD = (BatchReader, RowBatch, StoredBatch, DecodedBatch, LaneRows, RowGroup)


@pytest.fixture
def damaged(tmp_path) -> DeltaFeed:
    """40 rows, one of which does not decode."""
    images = [encoded(n)[: -40 if n == 26 else None] for n in range(40)]
    append(tmp_path / "damaged", changed(image_rows(range(40)), image=images))
    return DeltaFeed(tmp_path / "damaged")


@pytest.fixture
def vanished(tmp_path) -> DeltaFeed:
    """Two files, the second of which is gone."""
    feed = DeltaFeed(write_layout(tmp_path / "gone", [20, 20], row_group_rows=5), shuffle=False)
    Path(feed.plan.file_location(1)).unlink()
    return feed


@pytest.fixture(autouse=True)
def without_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def held() -> list[str]:
    return [kind.__name__ for kind in (type(item) for item in gc.get_objects()) if kind in HELD]


def assert_all_is_let_go() -> None:
    wait_until(lambda: not feed_threads() and not held())


def first_of(batches: Iterable[Any]) -> None:
    for _ in batches:
        assert feed_threads()
        break


def error_of(take: Callable[[], Any]) -> str:
    """The name of the error that something raises; the error itself is let go."""
    try:
        take()
    except Exception as error:  # noqa: BLE001 - whatever it is
        return type(error).__name__
    return "none"


def failing(images, labels):
    raise ValueError("no")


def dividing(images, labels):
    import tensorflow as tf

    return tf.debugging.check_numerics(tf.math.log(images - 1000.0), "not a number"), labels


@pytest.mark.parametrize(
    ("method", "preprocess", "errors"),
    [
        pytest.param(
            "as_numpy", failing, ["ValueError", "BadRowError", "VersionFilesMissingError"], marks=pytest.mark.unit
        ),
        pytest.param(
            "as_dataset", dividing, ["InvalidArgumentError", *["UnknownError"] * 2], marks=pytest.mark.tensorflow
        ),
    ],
)
def test_what_was_read_is_let_go_after_a_break_the_end_and_an_error(
    uneven, damaged, vanished, method, preprocess, errors
):
    read = operator.methodcaller(method, 8, 0, 1)
    ends = [
        lambda: first_of(operator.methodcaller(method, 8, 0, 1, None)(DeltaFeed(uneven))),
        lambda: list(read(DeltaFeed(uneven))),
        lambda: list(operator.methodcaller(method, 8, 0, 1, preprocess=preprocess)(DeltaFeed(uneven))),
        lambda: list(read(damaged)),
        lambda: list(read(vanished)),
    ]
    for end, error in zip(ends, ["none", "none", *errors], strict=True):
        assert error_of(end) == error
        assert_all_is_let_go()


@pytest.mark.unit
def test_threads_end_while_an_error_of_the_feed_is_still_held(damaged):
    with pytest.raises(BadRowError) as caught:
        list(damaged.as_numpy(8, 0, 1))
    assert feed_threads() == []
    del caught
    assert_all_is_let_go()
