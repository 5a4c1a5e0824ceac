"""Looks at the images of a version: what each looks like, which look alike, and small pictures."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ...errors import ImageError
from ...log.snapshot import Snapshot
from ..images.colours import encode_jpeg
from ..images.drawn_boxes import TRUTH_COLOUR, DrawnBox, draw_boxes
from ..images.perceptual_hash import MAX_DISTANCE, decode_small, find_neighbours, perceptual_hash
from ..images.stored_image import StoredImage, decode_image
from ..model import schema
from .rows import for_each_row

_THUMBNAIL_QUALITY = 82
_MOST_BOXES_DRAWN = 50
_PAIRS, _PAIR_SIDE = 12, 240
_IMAGE_COLUMNS = (schema.IMAGE, schema.FORMAT, schema.HEIGHT, schema.WIDTH)
_LOOKS = [("stored_bytes", "f4"), ("brightness", "f4"), ("hash_across", "u8"), ("hash_down", "u8"), ("hashed", "?")]


@dataclass(frozen=True)
class Sample:
    """One image to show."""

    jpeg: bytes  # A small JPEG of it, its boxes drawn in
    path: str  # Its source
    split: str  # Its split
    class_name: str  # Its class


@dataclass(frozen=True, eq=False)
class SimilarImages:
    """Images that look alike."""

    compared: int  # Images whose hashes were compared
    plain: int  # Images of nearly one colour, which were not
    unreadable: int  # Images that could not be decoded
    max_distance: int  # Bits of 128 by which the hashes of two similar images differ at most
    # Images of each split (rows) that look like one of a split (columns), which may be the same split
    near: pd.DataFrame
    pairs: tuple[tuple[Sample, Sample, int], ...] = ()  # The nearest pairs across splits, with their distance


def look_at_images(snapshot: Snapshot, images: pd.DataFrame) -> pd.DataFrame:
    """Decodes every image of a version."""
    looks = np.zeros(len(images), _LOOKS)
    modes, names = np.full(len(images), -1, np.int8), dict[str, int]()
    everything = np.arange(len(images))
    for row, found in for_each_row(snapshot, images, everything, _IMAGE_COLUMNS, _look_at):
        mode, *look = found
        looks[row] = tuple(look)
        if mode is not None:
            modes[row] = names.setdefault(mode, len(names))
    frame = pd.DataFrame(looks)
    return frame.assign(mode=pd.Categorical.from_codes(modes, list(names)))


def find_similar(snapshot: Snapshot, images: pd.DataFrame) -> SimilarImages:
    """Finds images that look alike, across splits and within them."""
    rows = np.flatnonzero(images["hashed"])
    hashes, splits = images[["hash_across", "hash_down"]].to_numpy()[rows], list(images["split"].cat.categories)
    found = find_neighbours(hashes, images["split"].cat.codes.to_numpy()[rows], len(splits))
    near = pd.DataFrame(0, splits, splits)
    for split, other in np.ndindex(near.shape):
        near.iloc[split, other] = found.held[found.is_near(split, other), split].sum()
    pairs, used = list[tuple[int, int, int]](), set[int]()
    for one, other, distance in found.pairs(found.held > 0):
        codes = {int(found.codes[one]), int(found.codes[other])}
        if not used & codes:
            used |= codes
            pairs.append((int(rows[one]), int(rows[other]), distance))
        if len(pairs) == _PAIRS:
            break
    pictures = fetch_samples(snapshot, images, {row for pair in pairs for row in pair[:2]}, _PAIR_SIDE)
    unreadable = int(images["brightness"].isna().sum())
    return SimilarImages(
        compared=len(rows),
        plain=len(images) - len(rows) - unreadable,
        unreadable=unreadable,
        max_distance=MAX_DISTANCE,
        near=near,
        pairs=tuple((pictures[one], pictures[other], distance) for one, other, distance in pairs),
    )


def fetch_samples(snapshot: Snapshot, images: pd.DataFrame, rows: Iterable[int], side: int) -> dict[int, Sample]:
    """Makes small pictures of rows, `side` pixels at most; leaves out images that cannot be decoded."""
    columns = [*_IMAGE_COLUMNS, schema.PATH, *([schema.ANNOTATIONS] if images["boxes"].notna().any() else [])]

    def picture_of(row: Mapping[str, Any]) -> tuple[bytes | None, str]:
        return _small_jpeg(row, side), str(row.get(schema.PATH) or "")

    return {
        row: Sample(jpeg, path, images["split"].iloc[row], images["class_name"].iloc[row])
        for row, (jpeg, path) in for_each_row(snapshot, images, list(rows), columns, picture_of)
        if jpeg is not None
    }


def _look_at(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Mode, then the fields of `_LOOKS`."""
    stored = len(row.get(schema.IMAGE) or b"")
    try:
        decoded = decode_small(row)
    except ImageError:  # counted as unreadable
        return None, stored, math.nan, 0, 0, False
    found = perceptual_hash(decoded.image)
    brightness = float(np.asarray(decoded.image.convert("L")).mean()) / 255
    return decoded.mode, stored, brightness, *(found or (0, 0)), found is not None


def _small_jpeg(row: Mapping[str, Any], side: int) -> bytes | None:
    try:
        image = decode_image(StoredImage.of_row(row)).image
    except ImageError:
        return None
    scale = min(1.0, side / max(image.size))
    small = image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))), reducing_gap=3.0)
    corners = ([box[name] for name in schema.BOX_CORNERS] for box in row.get(schema.ANNOTATIONS) or () if box)
    boxes = (DrawnBox(each, TRUTH_COLOUR) for each in corners if None not in each)
    draw_boxes(small, itertools.islice(boxes, _MOST_BOXES_DRAWN), image.size)
    return encode_jpeg(small, _THUMBNAIL_QUALITY)
