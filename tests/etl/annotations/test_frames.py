"""Rules of frames: a box of the stored image is carried back to the pixels of its file."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakelens.errors import ImageError
from lakelens.etl.annotations.boxes import Box, clip, place_boxes, upright_size
from lakelens.etl.annotations.frames import ImageFrames
from lakelens.etl.images.geometry import RESIZES, place

pytestmark = pytest.mark.unit

SIDES = st.integers(1, 4000)
SHARES = st.tuples(*[st.floats(0, 1)] * 4)


def made(resize, width, height, orientation, size):
    """The frames of what an ingest makes of an upright image of this size, and its placement."""
    placement = place(resize, width, height, size)
    source = {"width": width, "height": height, "orientation": orientation, "resize": resize}
    return ImageFrames.of(placement.width, placement.height, source), placement


@given(st.sampled_from(RESIZES), SIDES, SIDES, st.integers(1, 8), st.integers(1, 800), SHARES)
def test_a_box_of_the_file_comes_back_from_the_stored_image_unless_it_was_cut(
    resize, width, height, orientation, size, shares
):
    frames, placement = made(resize, width, height, orientation, size)
    file_width, file_height = upright_size(orientation, (width, height))
    (x0, x1), (y0, y1) = sorted(shares[:2]), sorted(shares[2:])
    drawn = np.array([[x0 * file_width, y0 * file_height, x1 * file_width, y1 * file_height]])
    stored = frames.to_stored(drawn)
    if np.abs(clip(stored, (placement.width, placement.height)) - stored).max() < 1e-9:
        np.testing.assert_allclose(frames.to_source(stored), drawn, atol=1e-6)
    back = frames.to_source(stored)
    np.testing.assert_allclose(frames.to_source(frames.to_stored(back)), back, atol=1e-6)
    assert (back >= 0).all()
    assert (back <= [file_width, file_height] * 2).all()


@pytest.mark.parametrize("resize", RESIZES)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_way_to_the_stored_image_is_that_of_an_ingest(orientation, resize):
    frames, placement = made(resize, 451, 303, orientation, 97)
    drawn = Box("a", 150, 150, 300.5, 290)
    known = {"source_size": (451, 303), "orientation": orientation, "placement": placement}
    (placed,) = place_boxes([drawn], drawn_on="file", **known).boxes
    np.testing.assert_allclose(frames.to_stored(np.array([drawn.corners])), [placed.corners], atol=1e-9)
    np.testing.assert_allclose(frames.to_source(np.array([placed.corners])), [drawn.corners], atol=1e-9)


def test_boxes_are_cut_at_the_edges_of_the_file_and_of_what_a_crop_has_left_of_it():
    padded, _ = made("fit", 200, 100, 1, 50)
    everywhere = np.array([[-9.0, -9.0, 99.0, 99.0]])
    assert padded.to_source(everywhere).tolist() == [[0, 0, 200, 100]]
    cropped, _ = made("crop", 200, 100, 6, 50)
    assert cropped.to_source(everywhere).tolist() == [[0, 50, 100, 150]]


def test_without_a_recorded_file_the_stored_image_is_the_source():
    none = dict.fromkeys(("width", "height", "orientation", "resize"))
    for frames in (ImageFrames.of(40, 30, None), ImageFrames.of(40, 30, none)):
        assert frames.source is None
        assert frames.to_source(np.array([[-1.0, 2.0, 50.0, 20.0]])).tolist() == [[0, 2, 40, 20]]
        assert frames.to_stored(np.array([[1.0, 2.0, 3.0, 4.0]])).tolist() == [[1, 2, 3, 4]]


@pytest.mark.parametrize(
    "changes",
    [{"width": None}, {"height": 0}, {"resize": "zoom"}, {"resize": None}, {"resize": "none"}, {"resize": "fit"}],
)
def test_what_no_ingest_has_written_is_refused(changes):
    source = {"width": 80, "height": 60, "orientation": 1, "resize": "fit", **changes}
    with pytest.raises(ImageError, match=r"column 'source' has .* for an image of 40 x 30 pixels; ingest"):
        ImageFrames.of(40, 30, source)
