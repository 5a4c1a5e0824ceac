from __future__ import annotations

import hashlib

import pytest

from lakelens.errors import InvalidArgumentError
from lakelens.etl.model.splits import check_splits, split_of

pytestmark = pytest.mark.unit

SPLITS = {"train": 0.8, "validation": 0.1, "test": 0.1}
HASHES = [hashlib.sha256(str(i).encode()).hexdigest() for i in range(20_000)]


def test_fractions_are_met_within_sampling_error():
    for seed in (0, 1):
        counts = dict.fromkeys(SPLITS, 0)
        for content_hash in HASHES:
            counts[split_of(content_hash, SPLITS, seed)] += 1
        for name, fraction in SPLITS.items():
            deviation = (len(HASHES) * fraction * (1 - fraction)) ** 0.5
            assert abs(counts[name] - fraction * len(HASHES)) < 4 * deviation


def test_a_split_depends_on_content_and_seed_alone():
    # Written down, so that no later version of lakelens moves the rows of a table that exists.
    for seed, letters in ((0, "aerrrrrarrrr"), (1, "rrrrrerrrera")):  # tRain, vAlidation, tEst
        assert "".join(split_of(content_hash, SPLITS, seed)[1] for content_hash in HASHES[:12]) == letters


@pytest.mark.parametrize(
    ("splits", "used"),
    [
        ({"never": 0.0, "train": 1.0, "neither": 0.0}, {"train"}),
        ({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, {"a", "b", "c"}),
    ],
)
def test_a_split_of_fraction_zero_gets_nothing_and_thirds_leave_no_content_out(splits, used):
    assert {split_of(content_hash, check_splits(splits), 3) for content_hash in HASHES[:1000]} == used


@pytest.mark.parametrize(
    ("splits", "words"),
    [
        ({}, ["empty", "at least one"]),
        ({"train": 0.8, "test": 0.1}, ["0.9", "sum to 1"]),
        ({"train": 1.2, "test": -0.2}, ["1.2", "from 0 to 1"]),
        ({"train": float("nan")}, ["nan", "from 0 to 1"]),
        ({"train": True}, ["True", "from 0 to 1"]),
        ({"train": "1"}, ["'1'", "from 0 to 1"]),
        ({"a/b": 1.0}, ["'a/b'", "letters"]),
        ({"": 1.0}, ["''", "letters"]),
        ({"train": 0.5, "TRAIN": 0.5}, ["'train'", "'TRAIN'", "upper and lower case"]),
        ({3: 1.0}, ["3", "letters"]),
        ({"train\n": 1.0}, [r"'train\n'", "letters"]),
        ({"x" * 101: 1.0}, ["xxx", "at most 100"]),
    ],
)
def test_splits_that_make_no_sense_are_refused(splits, words):
    with pytest.raises(InvalidArgumentError) as caught:
        check_splits(splits)
    assert all(word in str(caught.value) for word in words)
