"""Images that look alike, and images with the same bytes in several classes; pure."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..images.perceptual_hash import Nearest, find_nearest
from ..model.labels import NO_CLASS
from .images import Sample

if TYPE_CHECKING:
    import pandas as pd

_CONFLICTS, _CONFLICT_PATHS = 20, 4
_PAIRS = 12


@dataclass(frozen=True, eq=False)
class SimilarImages:
    """Images that look alike.

    Attributes:
        compared: Images whose hashes were compared.
        plain: Images of nearly one colour, which were not.
        unreadable: Images that could not be decoded.
        max_distance: Bits of 128 by which the hashes of two similar images differ at most.
        near: Images of each split (rows) that look like one of a split (columns), which may be the same split.
        pairs: The nearest pairs across splits, with their distance.
    """

    compared: int
    plain: int
    unreadable: int
    max_distance: int
    near: pd.DataFrame
    pairs: tuple[tuple[Sample, Sample, int], ...] = ()


def find_similar(images: pd.DataFrame, max_distance: int) -> tuple[SimilarImages, list[tuple[int, int, int]]]:
    """Finds images that look alike, across splits and within them.

    Args:
        images: A row for each image, with the columns of `read_rows` and of `look_at_images`.
        max_distance: Bits of 128 that may differ.

    Returns:
        The counts, without pairs; then the nearest pairs of rows of different splits with their distance.
    """
    import pandas as pd

    hashed = np.flatnonzero(images["hashed"])
    hashes = images[["hash_across", "hash_down"]].to_numpy()[hashed]
    unique, code = np.unique(hashes, axis=0, return_inverse=True)
    code, split = code.reshape(-1), images["split"].cat.codes.to_numpy()[hashed]
    splits = list(images["split"].cat.categories)
    held = np.zeros((len(unique), len(splits)), np.int64)
    np.add.at(held, (code, split), 1)
    nearest = find_nearest(unique, held > 0, max_distance)
    near = pd.DataFrame(0, splits, splits)
    for one, other in np.ndindex(near.shape):
        # In its own split a hash needs a second image.
        alike = (held[:, other] > (one == other)) | (nearest.rows[:, other] >= 0)
        near.iloc[one, other] = held[alike, one].sum()
    firsts = pd.DataFrame({"code": code, "split": split, "row": hashed}).drop_duplicates(["code", "split"])
    row_of = firsts.set_index(["code", "split"])["row"]
    pairs, used = list[tuple[int, int, int]](), set[int]()
    for first, second, distance, one, other in _pairs_across(held, nearest).tolist():
        if not used & {first, second} and len(pairs) < _PAIRS:
            used |= {first, second}
            pairs.append((int(row_of[first, one]), int(row_of[second, other]), distance))
    unreadable = int(images["brightness"].isna().sum())
    plain = len(images) - len(hashed) - unreadable
    return SimilarImages(len(hashed), plain, unreadable, max_distance, near), pairs


def find_conflicts(images: pd.DataFrame) -> tuple[list[tuple[list[str], list[int]]], int]:
    """Finds contents that are in several classes: classes and some rows of the first, and the number of contents."""
    named = images.loc[images["class_name"] != NO_CLASS, ["content", "class_name"]]
    in_classes = named.drop_duplicates()
    several = in_classes[in_classes["content"].duplicated(keep=False)]
    contents = np.unique(several["content"])
    conflicts = []
    for content in contents[:_CONFLICTS]:
        # One row of each class first: thousands of copies in one class would hide the file that is in another.
        firsts = several[several["content"] == content]
        rows = [*firsts.index, *named.index[named["content"] == content].difference(firsts.index)]
        conflicts.append((sorted(firsts["class_name"]), [int(row) for row in rows[:_CONFLICT_PATHS]]))
    return conflicts, len(contents)


def _pairs_across(held: npt.NDArray[np.int64], nearest: Nearest) -> npt.NDArray[np.int64]:
    """Lists pairs of similar hashes in different splits, nearest first: both hashes, their distance, both splits."""
    found = [np.empty((0, 5), np.int64)]
    for one, other in itertools.combinations(range(held.shape[1]), 2):
        codes = np.flatnonzero(held[:, one])
        is_same = held[codes, other] > 0
        partners = np.where(is_same, codes, nearest.rows[codes, other])
        distances = np.where(is_same, 0, nearest.distances[codes, other])
        pairs = np.stack([codes, partners, distances, np.full_like(codes, one), np.full_like(codes, other)], axis=1)
        found.append(pairs[partners >= 0])
    pairs = np.concatenate(found)
    return pairs[np.argsort(pairs[:, 2], kind="stable")]
