"""Rules of how a scoring is cut into parts; pure logic."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from lakelens.inference.scoring.parts import TARGET_S, cut, first_rows, next_rows, take

pytestmark = pytest.mark.unit

FILES = {f"file {n}": n for n in range(40)} | {"large": 1000}


def cut_in_order(files, most, seed=0):
    return cut(files, most, random.Random(seed))  # noqa: S311  an order, no secret


def parts_of(seed, most=100):
    pieces = cut_in_order(FILES, most, seed)
    parts = []
    while pieces:
        parts.append(take(pieces, most))
    return parts


def test_the_parts_hold_each_file_or_each_of_its_shares_once():
    held = Counter((piece.file, piece.share) for part in parts_of(0) for piece in part)
    assert set(held.values()) == {1}
    assert {file for file, _ in held} == {file for file, rows in FILES.items() if rows}
    assert sum(file == "large" for file, _ in held) == 10


def test_a_part_is_bounded_and_no_smaller_than_it_needs_to_be():
    rows = [sum(piece.rows for piece in part) for part in parts_of(0)]
    assert max(rows) <= 100
    assert len(rows) < 2 * sum(FILES.values()) / 100
    assert len(take(cut_in_order({"large": 1000}, 100), 1)) == 1


def test_jobs_take_the_parts_in_orders_of_their_own():
    firsts = {parts_of(seed)[0][0].file for seed in range(20)}
    assert len(firsts) > 10


def test_the_next_part_takes_about_as_long_as_a_part_should():
    assert next_rows(100, 2 * TARGET_S) == 50
    assert next_rows(100, TARGET_S / 2) == 200
    assert next_rows(100, 0) == 400
    assert next_rows(1, 1000 * TARGET_S) == 1
    assert first_rows((299, 299, 3), 4) == 4 * first_rows((299, 299, 3), 1)
    assert first_rows((1, 1, 3), 1) <= 50_000
    assert first_rows((100_000, 100_000, 3), 1) == 1
