"""Bounding boxes: one convention, and their exact way through EXIF orientation and resize.

Half-open intervals [xmin, xmax) x [ymin, ymax) in pixels: the first pixel is (0, 0, 1, 1). Fractions are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...errors import InvalidArgumentError
from ..images.geometry import AUTO, FILE, UPRIGHT, Placement

Coordinates = npt.NDArray[np.float64]  # [n, 4]: xmin, ymin, xmax, ymax

BOX_CLIPPED = "box_clipped"
BOX_INVERTED = "box_inverted"
BOX_NOT_FINITE = "box_not_finite"
BOX_NO_AREA = "box_no_area"
BOX_OUTSIDE = "box_outside"
BOX_CROPPED = "box_cropped"
BOX_CROPPED_AWAY = "box_cropped_away"
SIZE_MISMATCH = "annotation_size_mismatch"
SIZE_SCALED = "annotation_size_scaled"
ORIENTATION_ASSUMED = "orientation_assumed"

# Of an image's orientations, those that exchange width and height.
_TURNING_ORIENTATIONS = (5, 6, 7, 8)
# The orientation that undoes another; the six that are missing undo themselves.
_INVERSE_ORIENTATIONS = {6: 8, 8: 6}
_NOT_UPRIGHT = range(2, 9)
_CLOSE_PIXELS, _CLOSE_PROPORTIONS = 2, 0.01
_DECODER_REDUCTIONS = (1, 2, 4, 8)
_DETAIL_LENGTH = 200
_ROUNDING = 1e-9


class Problem(NamedTuple):
    """Something about an annotation that was repaired, dropped or is a reason to quarantine the image."""

    reason: str  # One of `record.REASONS`
    detail: str  # The value that breaks the rule, at most 200 characters


@dataclass(frozen=True)
class Box:
    """One object in an image."""

    label_name: str  # Name of its class
    xmin: float  # Left edge in pixels
    ymin: float  # Top edge in pixels
    xmax: float  # Right edge in pixels, exclusive
    ymax: float  # Bottom edge in pixels, exclusive
    difficult: bool = False  # Whether evaluation may skip it (VOC's `difficult`, COCO's `iscrowd`)
    label: int | None = None  # Number of its class; None until the table has given one

    @property
    def corners(self) -> tuple[float, float, float, float]:
        """The coordinates xmin, ymin, xmax, ymax."""
        return self.xmin, self.ymin, self.xmax, self.ymax


class PlacedBoxes(NamedTuple):
    """Boxes after a check or a change of frame, and what happened to those that did not pass as they were."""

    boxes: tuple[Box, ...]
    problems: tuple[Problem, ...]


def problem(reason: str, detail: object) -> Problem:
    """Builds a problem whose detail is short enough to be stored for every image of a hostile source."""
    text = str(detail)
    return Problem(reason, text if len(text) <= _DETAIL_LENGTH else text[: _DETAIL_LENGTH - 1] + "…")


def coordinates_of(boxes: Sequence[Box]) -> Coordinates:
    """Gathers the corners of boxes as float64 [n, 4]."""
    return np.array([box.corners for box in boxes], dtype=np.float64).reshape(len(boxes), 4)


def with_coordinates(boxes: Sequence[Box], coordinates: Coordinates) -> tuple[Box, ...]:
    """Replaces the corners of boxes, row by row."""
    return tuple(
        replace(box, xmin=row[0], ymin=row[1], xmax=row[2], ymax=row[3])
        for box, row in zip(boxes, coordinates.tolist(), strict=True)
    )


def upright_size(orientation: int, size: tuple[int, int]) -> tuple[int, int]:
    """Returns (width, height) of an image after EXIF `orientation` has been applied."""
    return (size[1], size[0]) if orientation in _TURNING_ORIENTATIONS else size


def turn_upright(coordinates: Coordinates, orientation: int, size: tuple[int, int]) -> Coordinates:
    """Carries boxes from the pixels of a file to the upright image."""
    width, height = size
    x0, y0, x1, y1 = coordinates.T
    across, along = (width - x1, width - x0), (height - y1, height - y0)
    columns: dict[int, tuple[Any, Any, Any, Any]] = {
        2: (across[0], y0, across[1], y1),
        3: (across[0], along[0], across[1], along[1]),
        4: (x0, along[0], x1, along[1]),
        5: (y0, x0, y1, x1),
        6: (along[0], x0, along[1], x1),
        7: (along[0], across[0], along[1], across[1]),
        8: (y0, across[0], y1, across[1]),
    }
    return np.stack(columns.get(orientation, (x0, y0, x1, y1)), axis=1)


def turn_back(coordinates: Coordinates, orientation: int, size: tuple[int, int]) -> Coordinates:
    """Carries boxes from the upright image, of (width, height) `size`, back to the pixels of its file."""
    return turn_upright(coordinates, _INVERSE_ORIENTATIONS.get(orientation, orientation), size)


def decoder_reduction(file_size: tuple[int, int], decoded_size: tuple[int, int]) -> int:
    """Finds by how much a JPEG decoder reduced an image: 1, 2, 4 or 8 pixels of the file for each decoded pixel."""
    # libjpeg rounds a reduced side up: dividing the two sizes would shift edges by up to one decoded pixel.
    for block in _DECODER_REDUCTIONS:
        if decoded_size == (math.ceil(file_size[0] / block), math.ceil(file_size[1] / block)):
            return block
    raise InvalidArgumentError(
        f"decoded_size = {_by(decoded_size)} is not {_by(file_size)} pixels divided by 1, 2, 4 or 8 and rounded up"
    )


def check_boxes(boxes: Sequence[Box], size: tuple[int, int]) -> PlacedBoxes:
    """Checks boxes against the image that they were drawn on: orders corners, cuts at edges, drops invalid boxes."""
    if not boxes:
        return PlacedBoxes((), ())
    given = coordinates_of(boxes)
    finite = np.isfinite(given).all(axis=1)
    ordered = np.concatenate([np.minimum(given[:, :2], given[:, 2:]), np.maximum(given[:, :2], given[:, 2:])], axis=1)
    flat = (ordered[:, 2:] <= ordered[:, :2]).any(axis=1)
    clipped = clip(ordered, size)
    outside = (clipped[:, 2:] <= clipped[:, :2]).any(axis=1)
    dropped = _first_reason([(~finite, BOX_NOT_FINITE), (flat, BOX_NO_AREA), (outside, BOX_OUTSIDE)])
    repaired = [((ordered != given).any(axis=1), BOX_INVERTED), ((clipped != ordered).any(axis=1), BOX_CLIPPED)]
    return _select(boxes, clipped, dropped, repaired, size)


def place_boxes(
    boxes: Sequence[Box],
    *,
    source_size: tuple[int, int],
    orientation: int,
    placement: Placement,
    declared_size: tuple[int, int] | None = None,
    decoded_size: tuple[int, int] | None = None,
    drawn_on: str = AUTO,
) -> PlacedBoxes:
    """Carries boxes from an annotation to the stored image: check, turn upright, scale, cut what `crop` cuts.

    None is returned, with the problem `SIZE_MISMATCH`, if the boxes belong to an image of another size.
    """
    file_size = upright_size(orientation, source_size)
    frame = find_frame(source_size, orientation, declared_size, drawn_on)
    if frame is None:
        detail = f"annotated at {_by(declared_size or (0, 0))}, the image has {_by(file_size)} pixels"
        return PlacedBoxes((), (problem(SIZE_MISMATCH, detail),))
    checked = check_boxes(boxes, frame.size)
    checked = PlacedBoxes(checked.boxes, checked.problems + frame.problems)
    if not checked.boxes:
        return checked
    own_size = source_size if frame.is_upright else file_size
    coordinates = coordinates_of(checked.boxes) * np.array(
        [own_size[0] / frame.size[0], own_size[1] / frame.size[1]] * 2
    )
    if frame.is_upright:
        coordinates = turn_back(coordinates, orientation, source_size)
    decoded_file_size = upright_size(orientation, decoded_size or source_size)
    block = decoder_reduction(file_size, decoded_file_size)
    # The blocks of the decoder may reach over the right and bottom edges of the file; turning moves those edges.
    covered_size = (decoded_file_size[0] * block, decoded_file_size[1] * block)
    upright = turn_upright(coordinates, orientation, covered_size)
    return _cut(checked, _scale(upright, upright_size(orientation, covered_size), placement), placement)


class Frame(NamedTuple):
    """The image that boxes were drawn on."""

    is_upright: bool  # Whether it is the image as it is shown, with the EXIF orientation applied, or the file's pixels
    size: tuple[int, int]  # Its width and height
    problems: tuple[Problem, ...] = ()  # What was assumed or is to be scaled


def find_frame(
    source_size: tuple[int, int], orientation: int, declared_size: tuple[int, int] | None, drawn_on: str = AUTO
) -> Frame | None:
    """Finds the image that boxes were drawn on; None if the declared size is that of neither.

    If both have it, or none is declared, `auto` takes the upright one, on which labelling tools draw.
    """
    sizes = {True: source_size, False: upright_size(orientation, source_size)}
    allowed = [True] * (drawn_on != FILE) + [False] * (drawn_on != UPRIGHT)
    assumed = (problem(ORIENTATION_ASSUMED, f"EXIF orientation {orientation}, taken as drawn on the upright image"),)
    is_unclear = drawn_on == AUTO and orientation in _NOT_UPRIGHT
    if declared_size is None:
        return Frame(allowed[0], sizes[allowed[0]], assumed if is_unclear else ())
    fitting = [upright for upright in allowed if sizes[upright] == declared_size]
    scaled: tuple[Problem, ...] = ()
    if not fitting:
        fitting = [upright for upright in allowed if _is_scaled(declared_size, sizes[upright])]
        fitting.sort(key=lambda upright: _distance(declared_size, sizes[upright]))
        detail = f"annotated at {_by(declared_size)}, the image has {_by(sizes[fitting[0]])} pixels" if fitting else ""
        scaled = (problem(SIZE_SCALED, detail),)
    if not fitting:
        return None
    is_unclear &= len(fitting) > 1 and _distance(declared_size, sizes[True]) == _distance(declared_size, sizes[False])
    return Frame(fitting[0], declared_size, scaled + (assumed if is_unclear else ()))


def _is_scaled(declared: tuple[int, int], size: tuple[int, int]) -> bool:
    if max(abs(declared[0] - size[0]), abs(declared[1] - size[1])) <= _CLOSE_PIXELS:
        return True
    return abs(declared[0] * size[1] / (declared[1] * size[0]) - 1) <= _CLOSE_PROPORTIONS


def _distance(declared: tuple[int, int], size: tuple[int, int]) -> float:
    return abs(math.log(declared[0] / size[0])) + abs(math.log(declared[1] / size[1]))


def _from_inclusive(xmin: float, ymin: float, xmax: float, ymax: float) -> tuple[float, float, float, float]:
    left, right = _with_last_pixel(xmin, xmax)
    top, bottom = _with_last_pixel(ymin, ymax)
    return left, top, right, bottom


def _with_last_pixel(first: float, last: float) -> tuple[float, float]:
    """Converts both ends of a side; ends in the wrong order stay so, for `check_boxes`."""
    return (first - 1, last) if first <= last or math.isnan(last) else (first, last - 1)


# From four numbers of an annotation to the corners xmin, ymin, xmax, ymax.
_CONVENTIONS: Mapping[str, Callable[..., tuple[float, float, float, float]]] = {
    "half_open": lambda xmin, ymin, xmax, ymax: (xmin, ymin, xmax, ymax),
    # VOC's 1-based pixels, of which the last belongs to the box. VOC2012 development kit, section on annotation: "the
    # top-left pixel in the image has coordinates (1, 1)".
    "inclusive": _from_inclusive,
    # COCO's `bbox`. cocodataset/cocoapi issue 5: a box that spans the first pixel has the corners (0, 0) and (1, 1).
    "corner_and_size": lambda x, y, width, height: (x, y, x + width, y + height),
}


def box_from_values(
    label_name: str, corners: Iterable[Any], *, difficult: bool = False, convention: str = "half_open"
) -> Box:
    """Builds a box from four values of an annotation, which follow one of `_CONVENTIONS`."""
    values = [_number(value) for value in corners]
    if len(values) != 4:
        raise InvalidArgumentError(f"a box has four numbers, and {len(values)} were given")
    return Box(label_name, *_CONVENTIONS[convention](*values), difficult)


def is_true(value: Any) -> bool:
    """Whether a mark such as `difficult` is set; pandas writes 1.0."""
    return str(value).strip().lower() in ("1", "1.0", "true", "yes")


def _number(value: Any) -> float:
    # float() also reads 1_000 and digits of other scripts, which no annotation tool writes.
    is_plain = value.isascii() and "_" not in value if isinstance(value, str) else not isinstance(value, bool)
    try:
        if is_plain and isinstance(value, (int, float, str)):
            return float(value)
    except OverflowError:
        return math.inf
    except ValueError:
        pass
    raise InvalidArgumentError(f"{_short(value)} is not a number of pixels")


def _short(value: Any) -> str:
    if value is None:
        return "a missing value"
    return repr(value)[:60] if isinstance(value, (str, int, float, bool)) else f"a {type(value).__name__}"


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"


def _scale(coordinates: Coordinates, size: tuple[int, int], placement: Placement) -> Coordinates:
    """Carries boxes of an upright image of the given size to the stored image."""
    scale = np.array([placement.scaled_width / size[0], placement.scaled_height / size[1]] * 2, np.float64)
    return coordinates * scale + np.array([placement.offset_x, placement.offset_y] * 2, np.float64)


def _cut(checked: PlacedBoxes, placed: Coordinates, placement: Placement) -> PlacedBoxes:
    """Cuts placed boxes at the edges of the stored image, and reports boxes that `crop` has cut."""
    size = (placement.width, placement.height)
    clipped = clip(placed, size)
    gone = (clipped[:, 2:] <= clipped[:, :2]).any(axis=1)
    is_cropped = placement.offset_x < 0 or placement.offset_y < 0
    # Without a crop only the last bit of a product lies beyond an edge, or the scale leaves a box without any width.
    dropped = _first_reason([(gone, BOX_CROPPED_AWAY if is_cropped else BOX_NO_AREA)])
    cut = (np.abs(clipped - placed) > _ROUNDING * max(size)).any(axis=1)
    result = _select(checked.boxes, clipped, dropped, [(cut, BOX_CROPPED)] if is_cropped else [], size)
    return PlacedBoxes(result.boxes, checked.problems + result.problems)


def clip(coordinates: Coordinates, size: tuple[int, int]) -> Coordinates:
    """Cuts boxes at the edges of an image of (width, height) `size`."""
    clipped: Coordinates = np.clip(coordinates, 0.0, np.array([size[0], size[1]] * 2, dtype=np.float64))
    return clipped


def _first_reason(rules: list[tuple[npt.NDArray[np.bool_], str]]) -> list[str | None]:
    """For each box the first reason whose rule it breaks, or None."""
    reasons: list[str | None] = [None] * len(rules[0][0])
    for broken, reason in reversed(rules):
        for index in np.flatnonzero(broken):
            reasons[index] = reason
    return reasons


def _select(
    boxes: Sequence[Box],
    coordinates: Coordinates,
    dropped: list[str | None],
    repaired: list[tuple[npt.NDArray[np.bool_], str]],
    size: tuple[int, int],
) -> PlacedBoxes:
    """Keeps the boxes that no rule drops, at their new coordinates, and lists what happened."""
    kept = [index for index, reason in enumerate(dropped) if reason is None]
    problems = [
        problem(reason, _describe(boxes[index], size)) for index, reason in enumerate(dropped) if reason is not None
    ]
    for changed, reason in repaired:
        problems += [problem(reason, _describe(boxes[index], size)) for index in kept if changed[index]]
    return PlacedBoxes(with_coordinates([boxes[i] for i in kept], coordinates[kept]), tuple(problems))


def _describe(box: Box, size: tuple[int, int]) -> str:
    corners = ", ".join(f"{value:g}" for value in box.corners)
    return f"{box.label_name[:80]} ({corners}) in {_by(size)} pixels"
