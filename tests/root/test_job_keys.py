"""Rules of the keys of jobs."""

from __future__ import annotations

import pytest

from lakelens.errors import InvalidArgumentError
from lakelens.job_keys import Job, check_arguments, recorded_arguments

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("key", ["", "  ", "a\nb", "x" * 251, 'it\'s "both"', 7])
def test_a_key_that_a_store_could_not_find_again_is_refused(key):
    with pytest.raises(InvalidArgumentError, match="job="):
        Job(key)


def test_starting_over_is_a_takeover():
    with pytest.raises(InvalidArgumentError, match="add takeover=True"):
        Job("nightly", from_start=True)
    assert Job.of(None) is None
    assert Job.of("nightly") == Job.of(Job("nightly"))


def test_other_arguments_are_listed_by_their_keys():
    first = {"command": "train", "data": {"table": "/t", "version": 3}, "searcher": {"max_length": {"epochs": 2}}}
    recorded = recorded_arguments(first, limit=5000)
    check_arguments(Job("nightly"), recorded, {**first, "data": {"version": 3, "table": "/t"}})
    with pytest.raises(InvalidArgumentError) as caught:
        check_arguments(Job("nightly"), recorded, {"command": "train", "data": {"table": "/t", "version": 4}})
    assert "job 'nightly' was begun with other arguments: data.version was 3 and is 4; " in str(caught.value)
    assert "searcher.max_length.epochs was 2 and is not given" in str(caught.value)
    assert "--takeover --from-start" in str(caught.value)


def test_equal_values_are_equal_arguments_however_they_are_written():
    check_arguments(Job("k"), recorded_arguments({"by": 0, "names": ("a", "b")}, 100), {"by": 0.0, "names": ["a", "b"]})


def test_arguments_beyond_a_tag_are_compared_by_their_digest():
    long = {"command": "train", "words": "x" * 100}
    recorded = recorded_arguments(long, limit=90)
    assert len(recorded) < 90
    check_arguments(Job("nightly"), recorded, long)
    with pytest.raises(InvalidArgumentError, match="other arguments: too long to be kept and listed"):
        check_arguments(Job("nightly"), recorded, {**long, "words": "y"})
