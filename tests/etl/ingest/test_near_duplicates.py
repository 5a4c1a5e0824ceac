"""Rules of the search for new images that look like one of another split: pure, and once through a real Spark."""

from __future__ import annotations

import numpy as np
import pytest
from delta_rows import delta_rows
from etl_pictures import encoded, picture
from made_tables import make_table

from lakelens.etl.ingest.near_duplicates import compare
from lakelens.etl.ingest.results import IngestRequest
from lakelens.etl.ingest.run import ingest
from lakelens.etl.sources.source import Source
from lakelens.table import Table

TRAIN, TEST, VALIDATION = 0, 1, 2
TWELVE_LEAKS = [(number << 8, split, split == TEST) for number in range(12) for split in (TRAIN, TEST)]


def found(rows):
    """Compares (hash, split, is_new) rows; gives the count and the pairs of row numbers with their distance."""
    hashes = np.array([(code, 7) for code, _, _ in rows], np.uint64).reshape(-1, 2)
    splits = np.array([split for _, split, _ in rows], np.int64)
    count, pairs = compare(hashes, splits, np.array([new for _, _, new in rows], bool))
    return count, pairs


@pytest.mark.unit
@pytest.mark.parametrize(
    ("rows", "count", "pairs"),
    [
        ([(0b0, TRAIN, False), (0b11, TEST, True), (0xFFF0000, TEST, True)], 1, [(1, 0, 2)]),
        ([(5, TRAIN, False), (4, TRAIN, False), (5, TEST, True)], 1, [(2, 0, 0)]),  # an equal hash is the nearest
        ([(0, TRAIN, False), (1, TEST, False)], 0, []),  # both were there before
        ([(0, TRAIN, False), (1, TRAIN, True)], 0, []),  # within one split
        ([(0, TRAIN, True), (1, TEST, True)], 2, [(0, 1, 1), (1, 0, 1)]),
        ([(0, TRAIN, False), (7, TEST, False), (1, VALIDATION, True), (7, TRAIN, True)], 2, [(3, 1, 0), (2, 0, 1)]),
        ([], 0, []),
        ([(0, TRAIN, False)] + [(1, TEST, True)] * 30, 30, [(1, 0, 1)]),  # copies are shown once
        (TWELVE_LEAKS, 12, [(2 * number + 1, 2 * number, 0) for number in range(10)]),  # the nearest ten are shown
    ],
)
def test_a_new_image_near_one_of_another_split_is_found(rows, count, pairs):
    assert found(rows) == (count, pairs)


@pytest.mark.unit
def test_an_image_with_many_near_ones_leaves_room_for_others():
    copies = [(1 << bit, TRAIN, False) for bit in range(12)]
    rows = [(0, TEST, True), *copies, (0xFF0000, TEST, True), (0xFF0003, TRAIN, False)]
    count, pairs = found(rows)
    assert (count, [(row, distance) for row, _, distance in pairs]) == (2, [(0, 1), (13, 2)])


@pytest.mark.spark
def test_copies_of_another_quality_are_told_with_the_split_that_they_leak_into(spark, tmp_path):
    source, place = tmp_path / "source", Table(str(tmp_path / "t"))
    (source / "cat").mkdir(parents=True)

    def write(quality: int) -> None:
        for number in range(16):
            image = picture(number, width=120, height=120)
            (source / "cat" / f"{number} of {quality}.jpg").write_bytes(encoded(image, quality=quality))

    write(95)
    make_table(tmp_path / "t", source, size=96, splits={"train": 0.5, "test": 0.5})
    write(60)
    result = ingest(spark, place, IngestRequest(Source(source), {}, near_duplicates=True))
    splits = {row["path"].rpartition("/")[2].replace("%20", " "): row["split"] for row in delta_rows(place.location)}
    leaked = {n for n in range(16) if splits[f"{n} of 60.jpg"] != splits[f"{n} of 95.jpg"]}
    assert leaked
    assert (result.near_duplicates.images, result.near_duplicates.compared) == (len(leaked), 32)
    for pair in result.near_duplicates.examples:
        new, old = (path.rpartition("/")[2].replace("%20", " ") for path in (pair.path, pair.other_path))
        assert (splits[new], splits[old]) == (pair.split, pair.other_split)
        assert int(new.partition(" ")[0]) == int(old.partition(" ")[0])
        assert int(new.partition(" ")[0]) in leaked
