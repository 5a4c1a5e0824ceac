"""A mask without a `bbox` gives the bounds of its pixels, whatever form it is written in."""

from __future__ import annotations

import io
import json
import re

import numpy as np
import pytest
from problems import reasons

from lakelens.etl.annotations import record as an
from lakelens.etl.annotations.coco import read_coco

SIZE = (9, 7)  # height, width


def drawn(*pixels):
    mask = np.zeros(SIZE, bool)
    for rows, columns in pixels:
        mask[rows, columns] = True
    return mask


def runs_of(mask):
    """Counts down the columns, of zeros first."""
    flat = mask.flatten(order="F").astype(int)
    ends = np.flatnonzero(np.diff(flat, prepend=0, append=-1))
    return np.diff(ends, prepend=0).tolist()


def compressed(runs):
    """Writes runs as cocoapi's rleToString does: five bits a character, from the fourth run on differences."""
    text = ""
    for index, run in enumerate(runs):
        value, more = run - (runs[index - 2] if index > 2 else 0), True
        while more:
            digit = value & 0x1F
            value >>= 5
            more = value != -1 if digit & 0x10 else value != 0
            text += chr((digit | 0x20 if more else digit) + 48)
    return text


def records(segmentation, **keys):
    content = {
        "images": [{"id": 1, "file_name": "a.jpg"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "segmentation": segmentation, **keys}],
        "categories": [{"id": 1, "name": "cat"}],
    }
    return list(read_coco(io.BytesIO(json.dumps(content).encode()), "x.json").annotations(str))


MASKS = {
    "one pixel": drawn((4, 3)),
    "a rectangle": drawn((slice(2, 5), slice(1, 4))),
    "two parts": drawn((1, 1), (7, 5)),
    "the edges": drawn((slice(0, 9), 2), (slice(0, 9), 3)),
    "around a column": drawn((8, 1), (0, 2)),
    "everything": np.ones(SIZE, bool),
    "an arch": drawn((slice(3, 6), 1), (3, slice(1, 6)), (slice(3, 8), 5)),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_a_run_length_mask_is_the_box_of_its_pixels(name, packed):
    mask = MASKS[name]
    rows, columns = np.nonzero(mask)
    runs = runs_of(mask)
    (record,) = records({"size": list(SIZE), "counts": compressed(runs) if packed else runs}, iscrowd=1)
    (box,) = record.boxes
    # A run that goes on in the next column may be one run of both: then top and bottom are the image's edges.
    inside = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
    expected = (inside[0], 0, inside[2], SIZE[0]) if name == "around a column" else inside
    assert (box.corners, box.difficult) == (expected, True)


@pytest.mark.parametrize(
    ("segmentation", "corners"),
    [
        ([[1.5, 2, 9, 2, 5, 8.25]], (1.5, 2, 9, 8.25)),
        ([[1, 1, 3, 1, 3, 3, 1, 3], [8, 7, 9, 7, 9, 9]], (1, 1, 9, 9)),
        ([4, 5, 6, 5, 6, 9], (4, 5, 6, 9)),
    ],
    ids=["one", "two parts", "without the outer list"],
)
@pytest.mark.parametrize("bbox", [{}, {"bbox": None}, {"bbox": []}], ids=["no key", "null", "empty"])
def test_polygons_without_a_bbox_give_their_bounds(segmentation, corners, bbox):
    (record,) = records(segmentation, **bbox)
    assert [box.corners for box in record.boxes] == [corners]
    assert not record.problems


def test_a_bbox_wins_over_a_mask():
    (record,) = records([[1, 1, 3, 1, 3, 3]], bbox=[10, 20, 5, 5])
    assert record.boxes[0].corners == (10, 20, 15, 25)


@pytest.mark.parametrize(
    ("segmentation", "words"),
    [
        ([], "pairs of numbers"),
        ([[1, 2, 3, 4]], "pairs of numbers"),
        ([[1, 2, 3, 4, 5, "6"]], "pairs of numbers"),
        ({"size": [9, 7], "counts": [63]}, "no pixel"),
        ({"size": [9, 7], "counts": [3, 4]}, "7 pixels, its size says 9 x 7"),
        ({"size": [9], "counts": [9]}, r"no size \[height, width\]"),
        ({"size": [9, 7], "counts": "\u00e9"}, "the character"),
        ({"size": [9, 7], "counts": "o"}, "ends within a number"),
        (5, "neither a bbox nor a segmentation"),
    ],
)
def test_what_is_no_mask_is_a_box_that_is_lost(segmentation, words):
    (record,) = records(segmentation)
    assert (record.boxes, reasons(record)) == ((), [an.BOX_MALFORMED])
    assert re.search(words, record.problems[0].detail)
