"""Sizes of the source files of a version, read from those that this machine's disks have."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...errors import ImageError, InvalidArgumentError
from ...locations import absolute_path
from ...stores.data_files import local_form
from ..images.codec import read_size
from ..log.snapshot import Snapshot
from ..model import schema
from .rows import for_each_row

if TYPE_CHECKING:
    import pandas as pd

# Enough for the shape of a histogram; a slow disk reads as many headers in a few seconds.
_MOST_FILES = 2000
# The header is in the first of these unless a thumbnail or colour profile precedes it.
_HEADER_BYTES, _WHOLE_BYTES = 1 << 16, 1 << 26
_READERS = 8


def source_sizes(
    snapshot: Snapshot, images: pd.DataFrame, storage_options: Mapping[str, str] | None = None
) -> pd.DataFrame | None:
    """Reads the sizes of source files: of all, or of 2,000 chosen by their content.

    Returns:
        `width` and `height` in pixels, upright; NaN where a file cannot be read, or has another length than its row.
        None if no file can be read.
    """
    import pandas as pd

    rows = np.argsort(images["content"].to_numpy(), kind="stable")[:_MOST_FILES]

    def path_of(row: Mapping[str, str]) -> str | None:
        return row.get(schema.PATH)

    # One path shows whether the files are on a disk at all.
    if not any(
        _local(path) for _, path in for_each_row(snapshot, images, rows[:1], [schema.PATH], path_of, storage_options)
    ):
        return None
    paths = list(for_each_row(snapshot, images, rows, [schema.PATH], path_of, storage_options))
    lengths = images["source_bytes"].to_numpy()
    with ThreadPoolExecutor(_READERS, thread_name_prefix="lakelens-sources") as pool:
        sizes = list(pool.map(lambda found: _size_of(found[1], lengths[found[0]]), paths))
    frame = pd.DataFrame([size or (np.nan, np.nan) for size in sizes], columns=["height", "width"])
    return frame if frame["width"].notna().any() else None


def _local(path: str | None) -> str | None:
    try:
        return None if path is None else local_form(absolute_path(path))
    except InvalidArgumentError:
        return None


def _size_of(path: str | None, length: np.float32) -> tuple[int, int] | None:
    """Height and width that a file decodes to; None if it cannot be read here, or has changed since."""
    try:
        place = Path(_local(path) or "")
        if not place.is_file() or np.float32(place.stat().st_size) != length:
            return None
        for most in (_HEADER_BYTES, _WHOLE_BYTES):
            with place.open("rb") as file:
                head = file.read(most)
            try:
                return read_size(head)
            except ImageError:
                if len(head) < most:
                    break
    except (OSError, ValueError):  # no permission; a name that this system does not allow
        return None
    return None
