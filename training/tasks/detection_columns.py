"""Detections as the column that inference writes, in pixels of the source file; pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ...etl.annotations.frames import ImageFrames, unplaced
from ...etl.images.geometry import letterbox
from ...etl.model.schema import BOX_CORNERS
from .boxes import DETECTED, NO_BOX, SCORE, Flags, Floats


def detection_lists(
    detections: Floats,
    valid: Flags,
    frames: Sequence[ImageFrames | None],
    image_size: tuple[int, int],
    names: Sequence[str],
) -> pa.Array:
    """Writes the detections of each image as a list of structs, the best first."""
    real = (detections[..., DETECTED] > NO_BOX) & valid[:, None]
    found = detections[real]
    corners = [
        _in_source(boxes[kept, :4], frame, image_size)
        for boxes, kept, frame in zip(detections, real, frames, strict=True)
        if frame is not None and kept.any()
    ]
    corner_columns = np.concatenate([np.empty((0, 4), np.float32), *corners]).T
    labels = found[:, DETECTED].astype(np.int32)
    named = [names[label] if label < len(names) else None for label in labels.tolist()]
    fields = {
        "label": pa.array(labels, pa.int32()),
        "label_name": pa.array(named, pa.string()),
        "score": pa.array(found[:, SCORE], pa.float32()),
        **{name: pa.array(values, pa.float32()) for name, values in zip(BOX_CORNERS, corner_columns, strict=True)},
    }
    structs = pa.StructArray.from_arrays(list(fields.values()), list(fields))
    offsets = np.concatenate([[0], np.cumsum(real.sum(axis=1))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), structs, mask=pa.array(~valid))


def _in_source(boxes: Floats, frame: ImageFrames, image_size: tuple[int, int]) -> Floats:
    """Carries boxes, float32 [n, 4], from the letterboxed image of the given height and width to the source file."""
    height, width = image_size
    stored = unplaced(boxes.astype(np.float64), letterbox(frame.width, frame.height, width, height))
    return frame.to_source(stored).astype(np.float32)
