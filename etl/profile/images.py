"""Looks at the stored images of a version: perceptual hashes, near-duplicates across splits, samples to show."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from ...errors import ImageError
from ..images.codec import Decoded
from ..images.perceptual_hash import Hashes, Nearest, find_nearest, perceptual_hash
from ..images.stored_image import StoredImage, decode_image
from ..log.data_files import open_parquet
from ..model import schema
from .boxes import holds_boxes
from .data import BRIGHTNESS_BINS, MOST_SAMPLES, Brightness, Conflict, NearDuplicates, Sample
from .scan import RowGroup, Scan, for_each_group

_HASHED, _PLAIN, _UNREADABLE = 0, 1, 2
# A photograph is decoded at twice this side, or more.
_HASHED_SIDE = 36
_THUMBNAIL_QUALITY = 82
_BOX_COLOUR = (255, 64, 0)
_BATCH_ROWS = 256
_CONFLICT_PATHS = 4
_SAMPLE_COLUMNS = (
    schema.IMAGE,
    schema.FORMAT,
    schema.HEIGHT,
    schema.WIDTH,
    schema.PATH,
    schema.LABEL_NAME,
    schema.ANNOTATIONS,
)


@dataclass
class Looks:
    """What every image of a version looks like.

    Attributes:
        hashes: uint64 [rows, 2].
        states: uint8 [rows]: hashed, of nearly one colour, or unreadable.
        stored_bytes: float32 [rows].
        modes: Images by Pillow's mode.
        brightness: float32 [rows], mean grey from 0 to 1; NaN where an image is unreadable.
    """

    hashes: Hashes
    states: npt.NDArray[np.uint8]
    stored_bytes: npt.NDArray[np.float32]
    modes: Counter[str]
    brightness: npt.NDArray[np.float32]


class RowPair(NamedTuple):
    """Two rows that look alike."""

    first: int
    second: int
    distance: int


def hash_of_row(row: Mapping[str, Any]) -> tuple[tuple[int, int] | None, str]:
    """Hashes a row's image as it is shown: upright, transparency over white, 16 bits scaled rather than clipped.

    Returns:
        What `perceptual_hash` gives, and Pillow's name of the image's pixel format.

    Raises:
        ImageError: If it does not decode.
    """
    decoded = _decoded(row)
    return perceptual_hash(decoded.image), decoded.mode


def _decoded(row: Mapping[str, Any]) -> Decoded:
    return decode_image(StoredImage.of_row(row), target_size=_HASHED_SIDE)


def brightness_of(scan: Scan, looks: Looks) -> Brightness | None:
    """Counts how bright the images of each split are; None where no image could be decoded."""
    edges = np.linspace(0, 1, BRIGHTNESS_BINS + 1)
    mean, shares = {}, {}
    for code, split in enumerate(scan.splits):
        values = looks.brightness[(scan.split_codes == code) & np.isfinite(looks.brightness)]
        if values.size:
            mean[split] = float(values.mean())
            shares[split] = tuple((np.histogram(values, edges)[0] / values.size).tolist())
    return Brightness(mean, shares, tuple(edges.tolist())) if mean else None


def look_at_images(scan: Scan, storage_options: Mapping[str, str] | None = None) -> Looks:
    """Hashes every image of a version."""
    looks = Looks(
        np.zeros((scan.rows, 2), np.uint64),
        np.full(scan.rows, _UNREADABLE, np.uint8),
        np.zeros(scan.rows, np.float32),
        Counter(),
        np.full(scan.rows, np.nan, np.float32),
    )

    def look_at(group: RowGroup) -> Counter[str]:
        modes: Counter[str] = Counter()
        row = group.first_row
        with open_parquet(scan.snapshot, group.file, storage_options) as parquet:
            names = [name for name in _SAMPLE_COLUMNS[:4] if name in parquet.schema_arrow.names]
            for batch in parquet.iter_batches(_BATCH_ROWS, row_groups=[group.group], columns=names):
                for values in _rows_of(batch):
                    _look_at_row(looks, row, values, modes)
                    row += 1
        return modes

    for modes in for_each_group(scan, scan.groups, look_at):
        looks.modes.update(modes)
    return looks


def find_duplicates(
    scan: Scan, looks: Looks, max_distance: int, most_pairs: int
) -> tuple[NearDuplicates, list[RowPair]]:
    """Finds images that look alike, across splits and within them.

    Returns:
        The counts, without samples, and the nearest pairs of rows of different splits.
    """
    rows = np.flatnonzero(looks.states == _HASHED)
    unique, inverse = np.unique(looks.hashes[rows], axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    width = max(len(scan.splits), 1)
    codes = scan.split_codes[rows].astype(np.int64)
    held = np.bincount(inverse * width + codes, minlength=len(unique) * width).reshape(len(unique), width)
    nearest = find_nearest(unique, held > 0, max_distance)
    neighbours = nearest.rows >= 0
    across, within = {}, {}
    for one, name in enumerate(scan.splits):
        own = (held[:, one] > 1) | neighbours[:, one]
        within[name] = int(held[own, one].sum())
        for other, other_name in enumerate(scan.splits):
            if other != one:
                near = (held[:, other] > 0) | neighbours[:, other]
                across[name, other_name] = int(held[near, one].sum())
    counts = np.bincount(looks.states, minlength=3)
    found = NearDuplicates(
        compared=int(counts[_HASHED]),
        plain=int(counts[_PLAIN]),
        unreadable=int(counts[_UNREADABLE]),
        max_distance=max_distance,
        across=across,
        within=within,
        pairs=(),
    )
    candidates = _cross_pairs(held > 0, nearest, most_pairs)
    return found, _rows_of_pairs(candidates, rows, inverse, codes)


def choose_samples(scan: Scan, names: Sequence[str | None], per_class: int) -> dict[str | None, list[int]]:
    """Chooses rows of each class by their content hash, so that no order of the source biases them."""
    if all(name is None for name in scan.names) and scan.boxes.rows_of_class:
        boxes = scan.boxes.rows_of_class
        return {
            name: [row for _, row in sorted(boxes[name].items())][:per_class]
            for name in names
            if name is not None and name in boxes
        }
    order = np.lexsort((scan.contents, scan.class_codes))
    starts = np.searchsorted(scan.class_codes[order], np.arange(len(scan.names) + 1))
    code_of = {name: code for code, name in enumerate(scan.names)}
    chosen: dict[str | None, list[int]] = {}
    for name in names:
        if name in code_of:
            code = code_of[name]
            chosen[name] = order[
                starts[code] : min(starts[code] + min(per_class, MOST_SAMPLES), starts[code + 1])
            ].tolist()
    return chosen


def fetch_samples(
    scan: Scan, rows: Iterable[int], side: int, storage_options: Mapping[str, str] | None = None
) -> dict[int, Sample]:
    """Reads rows and makes small pictures of them; rows whose image cannot be decoded are left out."""
    wanted = scan.find(sorted(set(rows)))

    def fetch(group: RowGroup) -> dict[int, Sample]:
        found: dict[int, Sample] = {}
        with open_parquet(scan.snapshot, group.file, storage_options) as parquet:
            present = parquet.schema_arrow
            names = [name for name in _SAMPLE_COLUMNS if name in present.names]
            if schema.ANNOTATIONS in names and not holds_boxes(present.field(schema.ANNOTATIONS).type):
                names.remove(schema.ANNOTATIONS)
            offsets = set(wanted[group])
            offset = 0
            for batch in parquet.iter_batches(_BATCH_ROWS, row_groups=[group.group], columns=names):
                for index in range(len(batch)):
                    if offset + index in offsets:
                        row = group.first_row + offset + index
                        sample = _sample(scan, row, batch.slice(index, 1).to_pylist()[0], side)
                        if sample is not None:
                            found[row] = sample
                offset += len(batch)
        return found

    samples: dict[int, Sample] = {}
    for found in for_each_group(scan, list(wanted), fetch):
        samples.update(found)
    return samples


def find_conflicts(
    scan: Scan, most: int, storage_options: Mapping[str, str] | None = None
) -> tuple[list[Conflict], int]:
    """Finds contents that are in several classes: the first of them with their files, and how many there are."""
    named = np.array([name is not None for name in scan.names] or [True])
    labelled = np.flatnonzero(named[scan.class_codes])
    order = labelled[np.lexsort((scan.class_codes[labelled], scan.contents[labelled]))]
    contents, classes = scan.contents[order], scan.class_codes[order]
    differs = np.flatnonzero((contents[1:] == contents[:-1]) & (classes[1:] != classes[:-1]))
    found = np.unique(contents[differs])
    conflicts = []
    for content in found[:most]:
        start, end = np.searchsorted(contents, content, "left"), np.searchsorted(contents, content, "right")
        codes, firsts = np.unique(classes[start:end], return_index=True)
        names = sorted(str(scan.names[code]) for code in codes)
        # One of each class first: thousands of copies in one class would hide the file that is in another.
        rows = [*order[start:end][firsts], *np.delete(order[start:end], firsts)][:_CONFLICT_PATHS]
        paths = paths_of(scan, [int(row) for row in rows], storage_options)
        conflicts.append(Conflict(tuple(names), tuple(sorted(paths))))
    return conflicts, len(found)


def _look_at_row(looks: Looks, row: int, values: Mapping[str, Any], modes: Counter[str]) -> None:
    looks.stored_bytes[row] = len(values.get(schema.IMAGE) or b"")
    try:
        decoded = _decoded(values)
    except ImageError:  # the row is unreadable and counted
        return
    found = perceptual_hash(decoded.image)
    modes[decoded.mode] += 1
    looks.brightness[row] = np.asarray(decoded.image.convert("L")).mean() / 255
    looks.states[row] = _PLAIN if found is None else _HASHED
    if found is not None:
        looks.hashes[row] = found


def _rows_of(batch: Any) -> Iterable[dict[str, Any]]:
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    for index in range(len(batch)):
        yield {name: values[index] for name, values in columns.items()}


def _cross_pairs(held: npt.NDArray[np.bool_], nearest: Nearest, most: int) -> list[tuple[int, int, int]]:
    """Chooses the nearest pairs of hashes that lie in different splits, each hash at most once."""
    splits = held.sum(axis=1, keepdims=True)
    chosen = [(int(code), int(code), 0) for code in np.flatnonzero(splits > 1)[:most]]
    used = {code for code, _, _ in chosen}
    # A hash that lies in a split other than that of its nearest.
    codes, split = np.nonzero((splits > held) & (nearest.rows >= 0))
    for index in np.argsort(nearest.distances[codes, split], kind="stable"):
        if len(chosen) >= most:
            break
        first, second = int(codes[index]), int(nearest.rows[codes[index], split[index]])
        if not used & {first, second}:
            used |= {first, second}
            chosen.append((first, second, int(nearest.distances[first, split[index]])))
    return chosen


def _rows_of_pairs(candidates: list[tuple[int, int, int]], rows: Any, inverse: Any, codes: Any) -> list[RowPair]:
    """Picks a row of each hash so that the two lie in different splits, the earlier split first."""
    order = np.argsort(inverse, kind="stable")
    ordered = inverse[order]
    result = []
    for first, second, distance in candidates:
        members = [
            order[np.searchsorted(ordered, code, "left") : np.searchsorted(ordered, code, "right")]
            for code in (first, second)
        ]
        one = members[0][np.argsort(codes[members[0]], kind="stable")]
        other = members[1][np.argsort(codes[members[1]], kind="stable")]
        pair = next(((a, b) for a in (one[0], one[-1]) for b in (other[0], other[-1]) if codes[a] != codes[b]), None)
        if pair is not None:
            low, high = sorted(pair, key=lambda index: int(codes[index]))
            result.append(RowPair(int(rows[low]), int(rows[high]), distance))
    return result


def _sample(scan: Scan, row: int, values: Mapping[str, Any], side: int) -> Sample | None:
    try:
        image = decode_image(StoredImage.of_row(values)).image
    except ImageError:
        return None
    scale = min(1.0, side / max(image.size))
    full_size = image.size
    image = image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))), reducing_gap=3.0)
    _draw_boxes(image, values.get(schema.ANNOTATIONS) or (), full_size)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=_THUMBNAIL_QUALITY)
    return Sample(
        jpeg=buffer.getvalue(),
        path=str(values.get(schema.PATH) or ""),
        split=scan.splits[scan.split_codes[row]] if scan.splits else None,
        class_name=scan.names[scan.class_codes[row]],
    )


def _draw_boxes(image: Image.Image, boxes: Sequence[Mapping[str, Any] | None], full_size: tuple[int, int]) -> None:
    draw = ImageDraw.Draw(image)
    across, down = image.width / full_size[0], image.height / full_size[1]
    for box in boxes[:50]:
        if box is None or any(box[name] is None or not math.isfinite(box[name]) for name in schema.BOX_CORNERS):
            continue
        corners = [box["xmin"] * across, box["ymin"] * down, box["xmax"] * across - 1, box["ymax"] * down - 1]
        if corners[0] <= corners[2] and corners[1] <= corners[3]:
            draw.rectangle(corners, outline=_BOX_COLOUR, width=max(1, round(max(image.size) / 100)))


def paths_of(scan: Scan, rows: Sequence[int], storage_options: Mapping[str, str] | None) -> list[str]:
    """Reads the paths of rows, which are in ascending order; none of data files that have no such column."""
    paths: list[str] = []
    for group, offsets in scan.find(rows).items():
        with open_parquet(scan.snapshot, group.file, storage_options) as parquet:
            if schema.PATH in parquet.schema_arrow.names:
                column = parquet.read_row_group(group.group, columns=[schema.PATH]).column(0)
                paths += [str(column[offset].as_py()) for offset in offsets]
    return paths
