"""A rank's place and environment."""

from __future__ import annotations

import json

import pytest

from lakelens.training.runner.placement.job import Job, assignment, horovod_environment, place, rank_environment

pytestmark = pytest.mark.unit


def test_ranks_are_numbered_within_and_across_hosts():
    placed = place(["a", "b", "a", "a", "b"])
    assert [(p.local_rank, p.local_size) for p in placed] == [(0, 3), (0, 2), (1, 3), (2, 3), (1, 2)]
    assert [(p.cross_rank, p.cross_size) for p in placed] == [(0, 2), (1, 2), (0, 2), (0, 1), (1, 2)]
    assert [p.rank for p in placed] == [0, 1, 2, 3, 4]


def test_a_world_of_one_has_no_horovod_variables():
    assert horovod_environment(place(["a"])[0], "lo", 60) == {}


def test_a_rank_inherits_tuning_but_no_place_from_outside():
    job = Job(name="j", size=2, payload=b"", stall_timeout_s=60, environment={"A": "1"})
    base = {"HOROVOD_RANK": "3", "HOROVOD_FUSION_THRESHOLD": "0", "PATH": "/bin"}
    found = rank_environment(job, base)
    assert "HOROVOD_RANK" not in found
    assert (found["HOROVOD_FUSION_THRESHOLD"], found["PATH"], found["A"]) == ("0", "/bin", "1")


@pytest.mark.parametrize("outside", [True, False])
def test_what_the_user_sets_goes_before_a_ranks_defaults(outside):
    name, own = "HOROVOD_DISABLE_GROUP_FUSION", {"HOROVOD_DISABLE_GROUP_FUSION": "0"}
    job = Job(name="j", size=2, payload=b"", stall_timeout_s=60, environment={} if outside else own)
    assert rank_environment(job, own if outside else {})[name] == "0"
    assert rank_environment(Job(name="j", size=2, payload=b"", stall_timeout_s=60), {})[name] == "1"


def test_a_jobs_secret_is_new_each_time_and_in_no_representation():
    first, second = (Job(name="j", size=2, payload=b"secret", stall_timeout_s=60) for _ in range(2))
    assert first.key != second.key
    assert first.key not in repr(first)


def test_what_the_driver_sends_a_rank_over_the_network_holds_no_secret():
    job = Job(name="j", size=2, payload=b"", stall_timeout_s=60)
    assert job.key not in json.dumps(assignment(job, place(["a", "b"])[1], {"A": "1"}))
