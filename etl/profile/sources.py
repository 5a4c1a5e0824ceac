"""Sizes of the source files of a version, read from those that this machine's disks have."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...errors import ImageError, InvalidArgumentError
from ...locations import absolute_path
from ...log.snapshot import Snapshot
from ...stores.data_files import local_form
from ..images.codec import read_size
from .rows import read_paths

if TYPE_CHECKING:
    import pandas as pd

# Enough for the shape of a histogram; a slow disk reads as many headers in a few seconds.
_MOST_FILES = 2000
# The header is in the first of these unless a thumbnail or colour profile precedes it.
_HEADER_BYTES, _WHOLE_BYTES = 1 << 16, 1 << 26
_READERS = 8


def source_sizes(snapshot: Snapshot, images: pd.DataFrame) -> pd.DataFrame | None:
    """Reads the sizes of source files: of all, or of 2,000 chosen by their content.

    Returns:
        `width` and `height` in pixels, upright; NaN where a file cannot be read, or has another length than its row.
        None if no file can be read.
    """
    import pandas as pd

    rows = np.argsort(images["content"].to_numpy(), kind="stable")[:_MOST_FILES]
    paths = read_paths(snapshot, images, rows)
    with ThreadPoolExecutor(_READERS, thread_name_prefix="lakelens-sources") as pool:
        sizes = list(pool.map(_size_of, paths.values(), images["source_bytes"].iloc[list(paths)]))
    frame = pd.DataFrame([size or (np.nan, np.nan) for size in sizes], columns=["height", "width"])
    return frame if frame["width"].notna().any() else None


def _size_of(path: str, length: float) -> tuple[int, int] | None:
    """Height and width that a file decodes to; None if it cannot be read here, or has changed since."""
    try:
        place = Path(local_form(absolute_path(path)) or "")
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
    except (InvalidArgumentError, OSError, ValueError):  # another machine's; no permission; not a path
        return None
    return None
