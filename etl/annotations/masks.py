"""The bounds of COCO's masks: polygons, and run-length masks, compressed or not; pure.

Source: cocodataset/cocoapi, `common/maskApi.h` and `maskApi.c`: runs go down the columns, of zeros first; a compressed
one is a number in base 32 of the characters from `0` on, and from the fourth run on the difference to the run before
the last.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...errors import InvalidArgumentError

_FIRST, _BITS, _SIGN, _MORE = 48, 5, 0x10, 0x20

Corners = tuple[float, float, float, float]


def mask_bounds(segmentation: Any) -> Corners:
    """Returns xmin, ymin, xmax and ymax of a `segmentation`, half-open as in `boxes`.

    Raises InvalidArgumentError for what is no mask, and for one without a pixel.
    """
    if isinstance(segmentation, list):
        return _bounds_of_polygons(segmentation)
    if isinstance(segmentation, Mapping):
        return _bounds_of_runs(segmentation)
    raise InvalidArgumentError("an annotation has neither a bbox nor a segmentation")


def _bounds_of_polygons(polygons: Sequence[Any]) -> Corners:
    # Some tools leave out the list around a single polygon.
    given = [polygons] if polygons and not isinstance(polygons[0], list) else polygons
    if not given or not all(_is_polygon(polygon) for polygon in given):
        raise InvalidArgumentError("a polygon is no list of pairs of numbers")
    xs = [float(x) for polygon in given for x in polygon[::2]]
    ys = [float(y) for polygon in given for y in polygon[1::2]]
    return min(xs), min(ys), max(xs), max(ys)


def _is_polygon(points: Any) -> bool:
    if not isinstance(points, list) or len(points) < 6 or len(points) % 2:
        return False
    return all(isinstance(n, (int, float)) and not isinstance(n, bool) and math.isfinite(n) for n in points)


def _bounds_of_runs(mask: Mapping[str, Any]) -> Corners:
    size, counts = mask.get("size"), mask.get("counts")
    if not isinstance(size, list) or len(size) != 2 or not all(_is_count(side) for side in size):
        raise InvalidArgumentError("a run-length mask has no size [height, width]")
    if isinstance(counts, str):
        counts = list(_decompressed(counts))
    if not isinstance(counts, list) or not all(_is_count(run) for run in counts):
        raise InvalidArgumentError("a run-length mask has no counts")
    height, width = size
    if sum(counts) != height * width:
        raise InvalidArgumentError(f"a run-length mask has {sum(counts)} pixels, its size says {height} x {width}")
    ends = list(itertools.accumulate(counts))
    runs = [(end - run, end) for run, end in zip(counts[1::2], ends[1::2], strict=True) if run]
    if not runs:
        raise InvalidArgumentError("a run-length mask has no pixel")
    top, bottom = height, 0
    for start, end in runs:
        spans = start // height != (end - 1) // height  # a run that continues in the next column has both edges
        top = 0 if spans else min(top, start % height)
        bottom = height if spans else max(bottom, (end - 1) % height + 1)
    return runs[0][0] // height, top, (runs[-1][1] - 1) // height + 1, bottom


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _decompressed(text: str) -> Iterator[int]:
    """Yields the runs of a compressed mask."""
    runs: list[int] = []
    value = shift = 0
    for character in text:
        digit = ord(character) - _FIRST
        if not 0 <= digit < 2 * _MORE:
            raise InvalidArgumentError(f"a compressed mask has the character {character!r}")
        value |= (digit & (_MORE - 1)) << shift
        shift += _BITS
        if digit & _MORE:
            continue
        if digit & _SIGN:
            value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        yield runs[-1]
        value = shift = 0
    if shift:
        raise InvalidArgumentError("a compressed mask ends within a number")
