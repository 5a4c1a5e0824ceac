"""Rules of decoding for a model: what is known of each image's file, and what is wrong with a row."""

from __future__ import annotations

import numpy as np
import pytest
from colours import SIDE, image_of

from lakelens.etl.annotations.frames import ImageFrames, SourceFile
from lakelens.etl.images.stored_image import PixelDecoder
from lakelens.inference.model.predictor import StoredRows, decode_rows

pytestmark = pytest.mark.unit


def test_each_image_comes_with_its_size_and_file_and_a_wrong_file_is_an_error_of_its_row():
    file = {"width": 80, "height": 40, "orientation": 6, "resize": "fit"}
    rows = StoredRows([image_of("red")] * 3 + [b"no image"], sources=[file, None, {**file, "resize": "zoom"}, file])
    frames = np.full(4, None)
    pixels = np.zeros((4, 8, 8, 3), np.uint8)
    errors = decode_rows(rows, pixels, PixelDecoder(), frames)
    assert frames.tolist() == [
        ImageFrames(SIDE, SIDE, SourceFile(80, 40, 6, "fit")),
        ImageFrames(SIDE, SIDE),
        None,
        None,
    ]
    assert errors[:2] == [None, None]
    assert errors[2].startswith("bad_source: column 'source' has {'width': 80")
    assert errors[3].startswith("not_an_image:")
    assert decode_rows(rows.rows(2, 3), pixels[:1], PixelDecoder()) == [None]
