"""Sizes of the source files of a version, read from those that this machine's disks have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from ...errors import ImageError, InvalidArgumentError
from ...locations import absolute_path
from ...stores.data_files import local_form
from ..images.codec import read_size
from .boxes import counts_between, histogram_of
from .data import ASPECT_BINS, ASPECT_RANGE, SourceSizes
from .images import paths_of
from .scan import Scan, histogram

# Enough for the shape of a histogram; a slow disk reads as many headers in a few seconds.
_MOST_FILES = 2000
# A header is within the first of these, but for a thumbnail or profile before it.
_HEADER_BYTES, _WHOLE_BYTES = 1 << 16, 1 << 26
_READERS = 8


def source_sizes(scan: Scan, storage_options: Mapping[str, str] | None = None) -> SourceSizes | None:
    """Reads the sizes of source files: of all, or of 2,000 chosen by their content; None where none can be read.

    A file that has another length than the row says is another one by now, and is passed over.
    """
    rows = sorted(np.argsort(scan.contents, kind="stable")[:_MOST_FILES].tolist())
    if not rows or not all(map(_is_of_a_disk, paths_of(scan, rows[:1], storage_options))):
        return None
    paths = paths_of(scan, rows, storage_options)
    if len(paths) < len(rows):  # of data files without that column nobody can tell whose path is whose
        return None
    with ThreadPoolExecutor(_READERS, thread_name_prefix="lakelens-sources") as pool:
        found = [size for size in pool.map(_size_of, paths, scan.source_bytes[rows]) if size is not None]
    return _summary(len(rows), found) if found else None


def _summary(looked_for: int, sizes: Sequence[tuple[int, int]]) -> SourceSizes:
    heights, widths = np.array(sizes, dtype=np.float32).T
    aspects = np.clip(np.log2(widths / heights), *ASPECT_RANGE)
    return SourceSizes(
        files=len(sizes),
        looked_for=looked_for,
        width_range=(int(widths.min()), int(widths.max())),
        height_range=(int(heights.min()), int(heights.max())),
        widths=histogram(widths),
        heights=histogram(heights),
        aspects=histogram_of(counts_between(aspects, ASPECT_BINS, ASPECT_RANGE), ASPECT_RANGE),
    )


def _is_of_a_disk(path: str) -> bool:
    try:
        return local_form(absolute_path(path)) is not None
    except InvalidArgumentError:
        return False


def _size_of(path: str, length: np.float32) -> tuple[int, int] | None:
    """The height and width that a file decodes to; None where it cannot be read here, or is another one by now."""
    try:
        place = local_form(absolute_path(path))
        if place is None or not Path(place).is_file():
            return None
        size_bytes = Path(place).stat().st_size
        if np.float32(size_bytes) != length:
            return None
        for most in (_HEADER_BYTES, _WHOLE_BYTES):
            with Path(place).open("rb") as file:
                head = file.read(most)
            try:
                return read_size(head)
            except ImageError:
                if size_bytes <= most:
                    break
    except (OSError, InvalidArgumentError, ValueError):  # no permission; another machine's; no path at all
        return None
    return None
