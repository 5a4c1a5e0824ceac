"""Perceptual hashes of images, and the images that look alike by them, within a split and across splits; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from .codec import Decoded
from .stored_image import StoredImage, decode_image

HASH_BITS = 128
# Two images look alike if at most this number of bits of their hashes differ.
MAX_DISTANCE = 8

_SIDE = 8
# Differences of grey that compression alone makes: they count neither as a gradient nor as a contrast.
_NOISE = 3
# With fewer contrasts than this, of 128, a picture is nearly one colour, and would equal every other such picture. Of
# 700 crops of two photographs these two values left 620 to compare and paired none that overlap by less than half.
_MIN_CONTRASTS = 40
# How many neighbours of one bucket are compared. Buckets are longer where many pictures are much alike, and each of
# them then has near ones among these; and in tables of 100,000 pictures that are half padding, where this finds 94% of
# the pairs that differ in six to eight bits.
_MAX_NEIGHBOURS = 256
_BITS_OF_BYTE = np.array([bin(byte).count("1") for byte in range(256)], np.uint8)

Hashes = npt.NDArray[np.uint64]


class Nearest(NamedTuple):
    """For each hash and group, the nearest other hash of that group: int64 [n, groups] each."""

    rows: npt.NDArray[np.int64]  # Its row; -1 where none is near
    distances: npt.NDArray[np.int64]  # Bits by which the two differ; more than the hashes have where none is near


def perceptual_hash(image: Image.Image) -> tuple[int, int] | None:
    """Hashes an image into two numbers of 64 bits: where grey falls on a 9 x 9 grid; None if nearly of one colour."""
    grid = np.asarray(
        image.convert("L").resize((_SIDE + 1, _SIDE + 1), Image.Resampling.BOX, reducing_gap=None), dtype=np.int16
    )
    corner = grid[:_SIDE, :_SIDE]
    falls = np.stack([corner - grid[:_SIDE, 1:], corner - grid[1:, :_SIDE]])
    if int((np.abs(falls) > _NOISE).sum()) < _MIN_CONTRASTS:
        return None
    packed = np.packbits(falls > _NOISE).tobytes()
    return int.from_bytes(packed[:8], "big"), int.from_bytes(packed[8:], "big")


def find_nearest(hashes: Hashes, groups: npt.NDArray[np.bool_]) -> Nearest:
    """Finds for each hash the nearest other one of each group, of those that differ in at most `MAX_DISTANCE` bits."""
    # Two hashes that differ in at most d bits are equal in at least one of d + 1 bands. Compared with some neighbours
    # in each band: near-linear in their number, but of many thousands a pair may be missed.
    bits = np.unpackbits(hashes.astype(">u8").view(np.uint8).reshape(len(hashes), 16), axis=1)
    nearest = Nearest(np.full(groups.shape, -1, np.int64), np.full(groups.shape, HASH_BITS + 1, np.int64))
    for band in _deal_bits(bits, MAX_DISTANCE + 1):
        _search_band(hashes, _band_keys(bits[:, band]), groups, nearest)
    return nearest


def _deal_bits(bits: npt.NDArray[np.uint8], bands: int) -> list[npt.NDArray[np.int64]]:
    """Deals the bits that vary, so that bands carry about the same information: padding makes runs of equal bits."""
    ones = bits.sum(axis=0, dtype=np.int64)
    varying = np.flatnonzero((ones > 0) & (ones < len(bits)))
    by_evenness = varying[np.argsort(np.abs(2 * ones[varying] - len(bits)), kind="stable")]
    return [by_evenness[band::bands] for band in range(bands)]


def _band_keys(bits: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    weights = np.uint64(1) << np.arange(min(bits.shape[1], 63), dtype=np.uint64)
    keys: npt.NDArray[np.uint64] = (bits[:, : len(weights)].astype(np.uint64) * weights).sum(axis=1, dtype=np.uint64)
    return keys


def _search_band(hashes: Hashes, keys: npt.NDArray[np.uint64], groups: npt.NDArray[np.bool_], nearest: Nearest) -> None:
    order = np.argsort(keys, kind="stable")
    keys, ordered = keys[order], hashes[order]
    for step in range(1, min(_MAX_NEIGHBOURS, len(keys) - 1) + 1):
        together = np.flatnonzero(keys[:-step] == keys[step:])
        if together.size == 0:
            break
        # Half of the hash already separates most images that differ.
        words = ordered[together, 0] ^ ordered[together + step, 0]
        together = together[_count_bits(words) <= MAX_DISTANCE]
        distances = _distances(ordered[together], ordered[together + step])
        together, distances = together[distances <= MAX_DISTANCE], distances[distances <= MAX_DISTANCE]
        one, other = order[together], order[together + step]
        _keep_nearer(nearest, one, other, distances, groups)
        _keep_nearer(nearest, other, one, distances, groups)


def _keep_nearer(
    nearest: Nearest,
    rows: npt.NDArray[np.int64],
    others: npt.NDArray[np.int64],
    distances: npt.NDArray[np.int64],
    groups: npt.NDArray[np.bool_],
) -> None:
    """Notes rows that are nearer than the noted ones; each row once."""
    for group in range(groups.shape[1]):
        nearer = groups[others, group] & (distances < nearest.distances[rows, group])
        nearest.rows[rows[nearer], group] = others[nearer]
        nearest.distances[rows[nearer], group] = distances[nearer]


def _distances(one: Hashes, other: Hashes) -> npt.NDArray[np.int64]:
    return _count_bits(one[:, 0] ^ other[:, 0]) + _count_bits(one[:, 1] ^ other[:, 1])


def _count_bits(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Counts the ones in each word."""
    counts: npt.NDArray[np.int64] = _BITS_OF_BYTE[words.view(np.uint8)].reshape(-1, 8).sum(axis=1, dtype=np.int64)
    return counts


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
