"""Rules of how a scoring is cut into parts; pure logic."""

from __future__ import annotations

import random

import pytest

from lakelens.inference.scoring.run import TARGET_S, first_rows, next_rows, shuffled, take

pytestmark = pytest.mark.unit

FILES = {f"file {n}": n for n in range(40)} | {"large": 1000}


def parts_of(seed):
    files = shuffled(FILES, random.Random(seed))  # noqa: S311  an order, no secret
    parts = []
    while files:
        parts.append(take(files, FILES, 100))
    return parts


def test_the_parts_hold_each_file_that_has_rows_once():
    held = [file for part in parts_of(0) for file in part]
    assert sorted(held) == sorted(file for file, rows in FILES.items() if rows)


def test_a_part_is_bounded_by_rows_unless_it_is_one_file():
    rows = [sum(FILES[file] for file in part) for part in parts_of(0) if part != ["large"]]
    assert max(rows) <= 100
    assert len(rows) < 2 * sum(FILES.values()) / 100


def test_jobs_take_the_parts_in_orders_of_their_own():
    firsts = {parts_of(seed)[0][0] for seed in range(20)}
    assert len(firsts) > 10


def test_the_next_part_takes_about_as_long_as_a_part_should():
    assert next_rows(100, 2 * TARGET_S) == 50
    assert next_rows(100, TARGET_S / 2) == 200
    assert next_rows(100, 0) == 400
    assert next_rows(1, 1000 * TARGET_S) == 1
    assert first_rows((299, 299, 3), 4) == 4 * first_rows((299, 299, 3), 1)
    assert first_rows((1, 1, 3), 1) <= 50_000
    assert first_rows((100_000, 100_000, 3), 1) == 1
