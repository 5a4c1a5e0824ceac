"""Rules of the column of detections: in pixels of the source file, best first, null without an answer."""

from __future__ import annotations

import numpy as np
import pytest

from lakelens.etl.annotations.frames import ImageFrames, SourceFile
from lakelens.etl.images.geometry import letterbox
from lakelens.training.tasks.detection_columns import detection_lists

pytestmark = pytest.mark.unit

NAMES = ("cat", "dog")
PADDING = [0, 0, 0, 0, 0, -1]


def lists(detections, sizes, image_size=(64, 64)):
    given = np.array(detections, np.float32)
    frames = [one if isinstance(one, ImageFrames) else ImageFrames(one[1], one[0]) for one in sizes]
    return detection_lists(given, np.ones(len(given), bool), frames, image_size, NAMES).to_pylist()


@pytest.mark.parametrize("size", [(480, 640), (640, 480), (7, 300), (64, 64), (1, 1)])
@pytest.mark.parametrize("image_size", [(64, 64), (96, 160)])
def test_a_box_comes_back_to_where_it_was_before_the_letterbox(size, image_size):
    height, width = size
    place = letterbox(width, height, image_size[1], image_size[0])
    truth = [0.25 * width, 0.5 * height, 0.75 * width, height]
    scale, offset = (place.scale_x, place.scale_y) * 2, (place.offset_x, place.offset_y) * 2
    placed = [*(x * by + to for x, by, to in zip(truth, scale, offset, strict=True)), 0.5, 1]
    ((box,),) = lists([[placed, PADDING]], [size], image_size)
    assert [box[name] for name in ("xmin", "ymin", "xmax", "ymax")] == pytest.approx(truth, rel=1e-4)
    assert (box["label"], box["label_name"], box["score"]) == (1, "dog", 0.5)


def test_boxes_are_cut_at_the_edges_of_the_image_and_a_class_without_a_name_has_none():
    ((box,),) = lists([[[-5, 10, 70, 60, 0.9, 7]]], [(32, 64)])
    assert [box[name] for name in ("xmin", "ymin", "xmax", "ymax")] == [0, 0, 64, 32]
    assert (box["label"], box["label_name"]) == (7, None)


def test_a_box_is_in_the_pixels_of_the_file_where_the_row_keeps_what_it_was():
    # A file of 80 x 40 pixels that EXIF turns to 40 x 80, letterboxed by the ingest to 64 and by the model to 32.
    frame = ImageFrames(64, 64, SourceFile(40, 80, 6, "fit"))
    ((box,),) = lists([[[8, 0, 16, 8, 0.9, 0]]], [frame], (32, 32))
    assert [box[name] for name in ("xmin", "ymin", "xmax", "ymax")] == [0, 20, 20, 40]
