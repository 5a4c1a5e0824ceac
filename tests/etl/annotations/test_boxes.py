"""Rules of boxes: one convention, checked and repaired by name, carried so that they still frame the same pixels."""

from __future__ import annotations

import math

import numpy as np
import pytest
from etl_pictures import as_held, encoded, oriented
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from lakelens.errors import InvalidArgumentError
from lakelens.etl.annotations import boxes as bx
from lakelens.etl.annotations.boxes import Box, box_from_values, check_boxes, place_boxes, turn_upright
from lakelens.etl.images.codec import decode_source
from lakelens.etl.images.colours import place_image
from lakelens.etl.images.geometry import RESIZES, place

pytestmark = pytest.mark.unit

ORIENTATIONS = tuple(range(1, 9))


def marked_file(size, marker, orientation, image_format="PNG"):
    """A black image with a white rectangle over `marker`, and an EXIF orientation."""
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    xmin, ymin, xmax, ymax = marker
    pixels[ymin:ymax, xmin:xmax] = 255
    options = {"quality": 95} if image_format == "JPEG" else {}
    return encoded(Image.fromarray(pixels), image_format, exif=oriented(orientation), **options)


def stored(data, resize, target):
    """What ingest stores of a file, on black, with all that `place_boxes` asks for."""
    reduces = resize != "none"
    decoded = decode_source(data, target_size=target if reduces else None)
    placement = place(resize, decoded.width, decoded.height, target)
    image = place_image(decoded.image, placement, fill=(0, 0, 0))
    known = {
        "source_size": (decoded.width, decoded.height),
        "orientation": decoded.orientation,
        "placement": placement,
        "decoded_size": decoded.image.size,
    }
    return np.asarray(image).astype(float)[..., 0] / 255, known


def measured(light):
    """Frames a white rectangle by its mass along each axis: exact to a fraction of a pixel."""
    columns, rows = light.sum(axis=0), light.sum(axis=1)
    area_width, area_height = columns.sum() / columns.max(), rows.sum() / rows.max()
    centre_x = (columns * (np.arange(columns.size) + 0.5)).sum() / columns.sum()
    centre_y = (rows * (np.arange(rows.size) + 0.5)).sum() / rows.sum()
    half_width, half_height = area_width / 2, area_height / 2
    return centre_x - half_width, centre_y - half_height, centre_x + half_width, centre_y + half_height


@pytest.mark.parametrize("target", [64, 299, 500])
@pytest.mark.parametrize("resize", RESIZES)
@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_a_box_frames_the_same_marker_in_the_stored_image(orientation, resize, target):
    marker = (200, 60, 280, 150)
    light, known = stored(marked_file((451, 302), marker, orientation), resize, target)
    placed = place_boxes([Box("a", *marker)], drawn_on="file", **known)
    assert placed.problems == ()
    assert placed.boxes[0].corners == pytest.approx(measured(light), abs=0.2)


@pytest.mark.parametrize("resize", RESIZES)
@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_a_box_frames_the_same_marker_when_the_decoder_reduced_the_jpeg(orientation, resize):
    # 1603 is no multiple of the decoder's blocks of 8; the marker lies far from the edge that the blocks start at.
    marker = (848, 496, 1104, 656)
    light, known = stored(marked_file((1603, 1101), marker, orientation, "JPEG"), resize, 64)
    if resize != "none":
        assert known["decoded_size"] != known["source_size"]
    (box,) = place_boxes([Box("a", *marker)], drawn_on="file", **known).boxes
    assert box.corners == pytest.approx(measured(light), abs=0.1 if resize != "none" else 0.6)
    shown = bx.with_coordinates([Box("a", *marker)], turn_upright(np.array([marker], float), orientation, (1603, 1101)))
    (upright,) = place_boxes(shown, drawn_on="upright", **known).boxes
    assert upright.corners == pytest.approx(box.corners, abs=1e-9)


def shown_file(size, marker, orientation):
    """A PNG whose file is the upright picture turned, pixel by pixel, as a camera writes it."""
    upright = Image.new("L", size)
    upright.paste(255, marker)
    return encoded(as_held(upright, orientation), "PNG", exif=oriented(orientation))


@pytest.mark.parametrize("size", [(40, 31), (36, 36)], ids=["oblong", "square"])
@pytest.mark.parametrize(("is_declared", "drawn_on"), [(True, "auto"), (False, "auto"), (True, "upright")])
@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_a_box_that_a_labelling_tool_drew_frames_the_same_pixels(orientation, is_declared, drawn_on, size):
    marker = (3, 5, 9, 20)
    light, known = stored(shown_file(size, marker, orientation), "none", 1)
    placed = place_boxes([Box("a", *marker)], declared_size=size if is_declared else None, drawn_on=drawn_on, **known)
    expected = np.zeros_like(light)
    xmin, ymin, xmax, ymax = (int(value) for value in placed.boxes[0].corners)
    expected[ymin:ymax, xmin:xmax] = 1
    assert np.array_equal(light, expected)
    is_known = orientation == 1 or drawn_on == "upright" or (is_declared and orientation > 4 and size[0] != size[1])
    assert [found.reason for found in placed.problems] == [bx.ORIENTATION_ASSUMED] * (not is_known)


@pytest.mark.parametrize(
    ("declared_size", "orientation", "drawn_on", "found"),
    [
        ((40, 31), 1, "auto", []),
        ((31, 40), 6, "auto", []),
        ((31, 40), 6, "file", []),
        ((80, 62), 1, "auto", [bx.SIZE_SCALED]),
        ((39, 33), 1, "auto", [bx.SIZE_SCALED]),
        ((2000, 1560), 1, "upright", [bx.SIZE_SCALED]),
        ((62, 80), 6, "auto", [bx.SIZE_SCALED]),
        ((31, 40), 1, "auto", None),
        ((31, 40), 3, "auto", None),
        ((31, 40), 6, "upright", None),
        ((40, 31), 8, "file", None),
        ((40, 34), 1, "auto", None),
        ((84, 62), 1, "auto", None),
    ],
)
def test_a_declared_size_is_that_of_the_image_or_of_one_that_was_scaled(declared_size, orientation, drawn_on, found):
    """The image is 40 x 31 as it is shown, and so 31 x 40 in the file of orientation 6 or 8."""
    known = {"source_size": (40, 31), "placement": place("none", 40, 31, 0), "orientation": orientation}
    placed = place_boxes([Box("a", 3, 5, 9, 20)], declared_size=declared_size, drawn_on=drawn_on, **known)
    reasons = [problem.reason for problem in placed.problems]
    assert (len(placed.boxes), reasons) == ((0, [bx.SIZE_MISMATCH]) if found is None else (1, found))
    for size in (declared_size, bx.upright_size(orientation, (40, 31))) if found is None else ():
        assert f"{size[0]} x {size[1]}" in placed.problems[0].detail


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_boxes_of_a_scaled_image_frame_the_same_pixels(orientation):
    marker = (6, 10, 18, 20)
    light, known = stored(shown_file((80, 62), marker, orientation), "none", 1)
    half = Box("a", *(side / 2 for side in marker))
    placed = place_boxes([half], declared_size=(40, 31), drawn_on="upright", **known)
    assert placed.boxes[0].corners == pytest.approx(measured(light), abs=1e-9)


def test_what_crop_cuts_is_cut_and_said():
    placement = place("crop", 200, 100, 100)
    inside, cut, gone = Box("a", 60, 10, 140, 90), Box("b", 0, 0, 100, 100), Box("c", 0, 0, 50, 100)
    placed = place_boxes([inside, cut, gone], source_size=(200, 100), orientation=1, placement=placement)
    assert [box.corners for box in placed.boxes] == [(10, 10, 90, 90), (0, 0, 50, 100)]
    assert sorted(reason for reason, _ in placed.problems) == [bx.BOX_CROPPED, bx.BOX_CROPPED_AWAY]


@pytest.mark.parametrize(
    ("corners", "kept", "reasons"),
    [
        ((15, 8, 2, 2), (2, 2, 10, 8), {bx.BOX_INVERTED, bx.BOX_CLIPPED}),
        ((-5, 2, 5, 8), (0, 2, 5, 8), {bx.BOX_CLIPPED}),
        ((5, 2, 15, 8), (5, 2, 10, 8), {bx.BOX_CLIPPED}),
        ((8, 8, 2, 2), (2, 2, 8, 8), {bx.BOX_INVERTED}),
        ((0, 0, 10, 10), (0, 0, 10, 10), set()),
        ((0.25, 0, 0.5, 1e-3), (0.25, 0, 0.5, 1e-3), set()),
        ((3, 3, 3, 9), None, {bx.BOX_NO_AREA}),
        ((3, 3, 9, 3), None, {bx.BOX_NO_AREA}),
        ((10, 0, 12, 5), None, {bx.BOX_OUTSIDE}),
        ((-9, -9, 0, 0), None, {bx.BOX_OUTSIDE}),
        ((math.nan, 0, 5, 5), None, {bx.BOX_NOT_FINITE}),
        ((0, -math.inf, 5, 5), None, {bx.BOX_NOT_FINITE}),
        ((0, 0, 1e308, 1e308), (0, 0, 10, 10), {bx.BOX_CLIPPED}),
    ],
)
def test_each_fault_of_a_box_has_one_name(corners, kept, reasons):
    checked = check_boxes([Box("a", *corners), Box("good", 1, 1, 2, 2)], (10, 10))
    assert [box.corners for box in checked.boxes] == ([kept] if kept else []) + [(1, 1, 2, 2)]
    assert {found for found, _ in checked.problems} == reasons
    assert len(checked.problems) == len(reasons)


@pytest.mark.parametrize("value", ["", "ten", None, True, [1], {}, "1_0", "\u0661", "0x10"])
def test_what_is_no_number_is_no_coordinate(value):
    with pytest.raises(InvalidArgumentError, match="not a number of pixels"):
        box_from_values("a", (value, 0, 1, 1))


def test_numbers_that_are_too_large_or_not_finite_are_left_to_the_check():
    for value in (10**400, "1e999", "nan", math.inf):
        box = box_from_values("a", (value, 0, 1, 1))
        assert check_boxes([box], (10, 10)).problems[0].reason == bx.BOX_NOT_FINITE


any_box = st.builds(Box, st.just("a"), *[st.floats(width=64)] * 4)


@given(st.lists(any_box, max_size=8), st.integers(1, 500), st.integers(1, 500))
@settings(max_examples=200, deadline=None)
def test_boxes_that_pass_lie_within_the_image_and_none_is_lost_without_a_reason(boxes, width, height):
    checked = check_boxes(boxes, (width, height))
    for box in checked.boxes:
        assert 0 <= box.xmin < box.xmax <= width
        assert 0 <= box.ymin < box.ymax <= height
    dropped = [reason for reason, _ in checked.problems if reason not in (bx.BOX_CLIPPED, bx.BOX_INVERTED)]
    assert len(checked.boxes) + len(dropped) == len(boxes)
    again = check_boxes(checked.boxes, (width, height))
    assert again == (checked.boxes, ())
