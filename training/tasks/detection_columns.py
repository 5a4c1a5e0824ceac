"""Detections as the column that inference writes, in pixels of the stored image; pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...etl.images.geometry import letterbox
from ...etl.model.schema import BOX_CORNERS
from .boxes import DETECTED, NO_BOX, SCORE, Flags, Floats


def detection_lists(
    detections: Floats,
    valid: Flags,
    sizes: npt.NDArray[np.int32],
    image_size: tuple[int, int],
    names: Sequence[str],
) -> pa.Array:
    """Writes the detections of each image as a list of structs, the best first.

    Args:
        detections: float32 [rows, most, 6], in pixels of the letterboxed image; rows of class -1 are padding.
        valid: bool [rows]; the list of another row is null.
        sizes: int32 [rows, 2], height and width of each stored image; the boxes are cut at its edges.
        image_size: Height and width of the letterboxed image.
        names: Class names by label number.
    """
    real = (detections[..., DETECTED] > NO_BOX) & valid[:, None]
    rows = np.nonzero(real)[0]
    found = detections[real]
    corners = _in_stored_image(found[:, :4], sizes[rows], image_size)
    labels = found[:, DETECTED].astype(np.int32)
    named = [names[label] if label < len(names) else None for label in labels.tolist()]
    fields = {
        "label": pa.array(labels, pa.int32()),
        "label_name": pa.array(named, pa.string()),
        "score": pa.array(found[:, SCORE], pa.float32()),
        **{name: pa.array(corners[:, i], pa.float32()) for i, name in enumerate(BOX_CORNERS)},
    }
    structs = pa.StructArray.from_arrays(list(fields.values()), list(fields))
    offsets = np.concatenate([[0], np.cumsum(real.sum(axis=1))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), structs, mask=pa.array(~valid))


def _in_stored_image(boxes: Floats, sizes: npt.NDArray[np.int32], image_size: tuple[int, int]) -> Floats:
    """Undoes the letterbox of each box, float32 [n, 4], of an image of the given height and width, [n, 2]."""
    height, width = image_size
    placed: dict[tuple[int, int], tuple[float, float, float, float]] = {}
    for stored_height, stored_width in sizes.tolist():
        if (stored_height, stored_width) not in placed:
            place = letterbox(stored_width, stored_height, width, height)
            placed[stored_height, stored_width] = (place.offset_x, place.offset_y, place.scale_x, place.scale_y)
    numbers = np.array([placed[size] for size in map(tuple, sizes.tolist())], np.float64).reshape(-1, 4)
    upright = (boxes - np.tile(numbers[:, :2], 2)) / np.tile(numbers[:, 2:], 2)
    inside: Floats = np.clip(upright, 0, np.tile(sizes[:, ::-1], 2)).astype(np.float32)
    return inside
