"""Images that look alike, by the perceptual hashes of their stored form: within a split and across splits; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .codec import Decoded
from .perceptual_hash import Hashes, Nearest, find_nearest
from .stored_image import StoredImage, decode_image

# A photograph is decoded at twice this side, or more.
_HASHED_SIDE = 36


def decode_small(row: Mapping[str, Any]) -> Decoded:
    """Decodes a row's image at a size that is enough to hash it."""
    return decode_image(StoredImage.of_row(row), target_size=_HASHED_SIDE)


@dataclass(frozen=True, eq=False)
class SplitNeighbours:
    """The nearest images of each image in each split; u distinct hashes, s splits."""

    codes: npt.NDArray[np.int64]  # Number of each row's hash, [n]
    held: npt.NDArray[np.int64]  # How many rows have a hash and a split, [u, s]
    first_rows: npt.NDArray[np.int64]  # The first row that has a hash and a split, [u, s]; -1 for none
    nearest: Nearest  # The nearest other hash of each split

    def is_near(self, split: int, other: int) -> npt.NDArray[np.bool_]:
        """Which hashes of a split, [u], are those of images that look like one of another split, or of the same."""
        # In its own split a hash needs a second image.
        return (self.held[:, other] > (split == other)) | (self.nearest.rows[:, other] >= 0)

    def pairs(self, wanted: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int, int]]:
        """Yields pairs of rows of different splits that look alike, and the bits that differ; the nearest first."""
        found = [np.empty((0, 3), np.int64)]
        for split, other in np.ndindex(self.held.shape[1], self.held.shape[1]):
            if split == other:
                continue
            codes = np.flatnonzero(wanted[:, split] & self.is_near(split, other))
            is_equal = self.held[codes, other] > 0
            partners = np.where(is_equal, codes, self.nearest.rows[codes, other])
            distances = np.where(is_equal, 0, self.nearest.distances[codes, other])
            found.append(np.stack([self.first_rows[codes, split], self.first_rows[partners, other], distances], axis=1))
        every = np.concatenate(found)
        for row, other_row, distance in every[np.argsort(every[:, 2], kind="stable")]:
            yield int(row), int(other_row), int(distance)


def find_neighbours(hashes: Hashes, splits: npt.NDArray[Any], split_count: int) -> SplitNeighbours:
    """Finds the images that look alike."""
    unique, codes = np.unique(hashes, axis=0, return_inverse=True)
    codes = codes.reshape(-1)
    held = np.zeros((len(unique), split_count), np.int64)
    np.add.at(held, (codes, splits), 1)
    first_rows = np.full(held.shape, -1, np.int64)
    rows = np.arange(len(codes))[::-1]
    first_rows[codes[rows], splits[rows]] = rows  # backwards, so that the first row stays
    return SplitNeighbours(codes, held, first_rows, find_nearest(unique, held > 0))
