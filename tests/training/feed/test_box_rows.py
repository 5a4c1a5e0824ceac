"""Rules of boxes as one array: width, limits, letterbox, and rows that cannot be used."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from feed_tables import append, changed, encoded, image_rows

from lakelens.errors import BadRowError
from lakelens.training.feed.feed import DeltaFeed

pytestmark = pytest.mark.unit
# Images of the helper are 12 pixels high and 16 wide.
CORNERS = dict.fromkeys(("xmin", "ymin", "xmax", "ymax"), pa.float64())
BOXES = pa.list_(pa.struct({"label": pa.int32(), **CORNERS, "difficult": pa.bool_()}))


def box(xmin: float, ymin: float, xmax: float, ymax: float, label: int | None = 0, difficult: bool = False) -> dict:
    return {"label": label, "xmin": xmin, "ymin": ymin, "xmax": xmax, "ymax": ymax, "difficult": difficult}


def feed_of(place: Path, *rows: list[dict] | None) -> DeltaFeed:
    append(place / "t", changed(image_rows(range(len(rows))), annotations=pa.array(rows, BOXES)))
    return DeltaFeed(place / "t", shuffle=False, label_column=None)


def test_a_batch_is_as_wide_as_its_fullest_row_and_an_image_without_objects_has_none(tmp_path):
    feed = feed_of(tmp_path, [box(1, 2, 9, 6, 3, True)], [], [box(0, 0, 4, 4)] * 3, [box(0, 0, 4, 4)])
    for source in (feed.as_numpy(2, box_classes=4), feed.as_dataset(2, box_classes=4)):
        first, second = (np.asarray(labels) for _, labels, _ in source)
        np.testing.assert_array_equal(first, [[[1, 2, 9, 6, 3, 1]], [[0, 0, 0, 0, -1, 0]]])
        assert second.shape == (2, 3, 6)
        np.testing.assert_array_equal(second[..., 4], [[0, 0, 0], [0, -1, -1]])


def test_boxes_follow_a_letterbox_and_so_do_the_pixels(tmp_path):
    feed = feed_of(tmp_path, [box(0, 0, 16, 12), box(4, 3, 8, 9)])
    images, labels, _ = next(feed.as_numpy(1, image_size=32, box_classes=1, letterbox=True))
    np.testing.assert_allclose(labels[0, :, :4], [[0, 4, 32, 28], [8, 10, 16, 22]])
    white = (images[0] == 255).all(axis=2)
    assert white[:4].all()
    assert white[28:].all()
    assert not white[4:28].any()
    stretched, labels, _ = next(feed.as_numpy(1, image_size=32, box_classes=1))
    np.testing.assert_allclose(labels[0, 0, :4], [0, 0, 32, 32])
    assert not (stretched == 255).all(axis=3).any()


def test_boxes_are_cut_at_the_edge_and_those_that_are_not_learned_are_left_out_and_counted(tmp_path):
    boxes = [box(0, 0, 0.5, 8), box(0, 0, 4, 4, difficult=True), box(-3, 2, 20, 40), box(0, 0, 2, 2)]
    feed = feed_of(tmp_path, boxes)
    _, labels, _ = next(feed.as_numpy(1, box_classes=1, box_limit=2))
    np.testing.assert_array_equal(labels[0, :, :4], [[0, 0, 4, 4], [0, 2, 16, 12]])
    left_out = feed.left_out
    assert (left_out.read, left_out.small, left_out.beyond, left_out.difficult) == (4, 1, 1, 1)


def test_a_row_whose_boxes_cannot_be_used_is_a_bad_row(tmp_path):
    unusable = [
        ([box(0, 0, math.nan, 4)], "a corner that is not a finite number"),
        ([box(0, 0, 4, 4), box(5, 0, 4, 4)], "has a box (5, 0, 4, 4) in column 'annotations' whose corners"),
        ([box(20, 0, 30, 4)], "outside its image of 16 x 12 pixels"),
        ([box(0, 0, 4, 4, 2)], "of class 2 in column 'annotations', outside 0 to 1; correct it, or set"),
        ([box(0, 0, 4, 4, None)], "of class None in column"),
    ]
    feed = feed_of(tmp_path, [box(0, 0, 4, 4)], *(row for row, _ in unusable))
    with pytest.raises(BadRowError, match=r"row 1 .* a corner that"):
        list(feed.as_numpy(6, box_classes=2))
    _, labels, weights = next(feed.as_numpy(6, box_classes=2, bad_rows="skip"))
    assert (labels.shape, weights.tolist()) == ((1, 1, 6), [1])
    for said, (_, words) in zip(feed.skipped.first, unusable, strict=True):
        assert words in said


def test_a_row_that_nobody_annotated_is_left_out_and_counted_and_a_table_of_such_rows_is_an_error(tmp_path):
    feed = feed_of(tmp_path, [box(0, 0, 4, 4)], None, [])
    _, labels, weights = next(feed.as_numpy(3, box_classes=2))
    assert weights.tolist() == [1, 1]
    assert labels[:, 0, 4].tolist() == [0, -1]
    assert (feed.left_out.annotated, feed.left_out.unannotated, feed.skipped.count) == (2, 1, 0)
    feed = feed_of(tmp_path / "null", None, None, None)
    with pytest.raises(BadRowError, match="all rows have null in column 'annotations': they are not annotated"):
        list(feed.as_numpy(2, box_classes=2))


@pytest.mark.parametrize("kept", [True, False])
def test_boxes_are_scaled_by_the_size_of_their_own_image(tmp_path, kept):
    sides = [100, 50, 20]
    rows = changed(
        image_rows(range(3)).drop(["height", "width"]),
        image=[encoded(n, "jpeg", side, side) for n, side in enumerate(sides)],
        annotations=pa.array([[box(0, 0, side, side)] for side in sides], BOXES),
        **({name: pa.array([100, None, None], pa.int32()) for name in ("height", "width")} if kept else {}),
    )
    append(tmp_path / "t", rows)
    _, target, _ = next(DeltaFeed(tmp_path / "t", shuffle=False).as_numpy(3, image_size=100, box_classes=2))
    assert target[:, 0, :4].tolist() == [[0, 0, 100, 100]] * 3


def test_boxes_of_an_image_that_does_not_tell_its_size_are_those_of_a_bad_row(tmp_path):
    boxes = pa.array([[box(0, 0, 8, 8)]] * 2, BOXES)
    rows = changed(image_rows(range(2)), image=[encoded(0), b"this is text"], annotations=boxes)
    append(tmp_path / "t", rows.drop(["height", "width"]))
    feed = DeltaFeed(tmp_path / "t", shuffle=False)
    with pytest.raises(BadRowError, match=r"row 1 .* has boxes and an image that does not tell its size"):
        list(feed.as_numpy(2, box_classes=2))
    _, target, weights = next(feed.as_numpy(2, box_classes=2, bad_rows="skip"))
    assert (weights.tolist(), len(target)) == ([1], 1)


def test_the_seed_of_a_batch_differs_by_batch_epoch_and_rank_and_is_the_same_after_a_resume(tmp_path):
    append(tmp_path / "t", image_rows(range(8)))
    feed = DeltaFeed(tmp_path / "t", seed=3)

    def seeds(rank=0, epochs=2, **options):
        drawn = []
        options["preprocess"] = lambda images, labels, seed: (images, drawn.append(seed) or labels)
        list(feed.as_numpy(4, rank, 2, epochs, seeded=True, **options))
        return [tuple(int(number) for number in seed) for seed in drawn]

    every = seeds() + seeds(1)
    assert len(set(every)) == len(every) == 8
    assert seeds(epochs=1, start=feed.position(3, 4)) == seeds()[3:]
