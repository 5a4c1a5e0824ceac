"""How many slots a cluster has, will have, and how long a job waits for them."""

from __future__ import annotations

import pytest

from lakelens.training.runner.spark.slots import Expected, Registered, expected, reserve

pytestmark = pytest.mark.unit


EACH, MOST = "spark.executor.cores", "spark.cores.max"


@pytest.mark.parametrize(
    ("master", "settings", "what"),
    [
        ("local[4]", {}, Expected(executors=0)),
        ("local[*]", {"spark.executor.instances": "9"}, Expected(executors=0)),
        ("local-cluster[3,2,1024]", {}, Expected(cores=6)),
        ("local-cluster[3, 2, 1024]", {MOST: "4"}, Expected(cores=4)),
        # Several executors on a worker, as many as its cores allow.
        ("local-cluster[2,5,4096]", {EACH: "2"}, Expected(cores=8)),
        ("local-cluster[2,4,4096]", {EACH: "2", MOST: "5"}, Expected(cores=4)),
        # Its master starts what its workers have room for, whatever number of executors is set.
        ("spark://h:7077", {"spark.executor.instances": "1"}, Expected()),
        ("spark://h:7077", {MOST: "8"}, Expected(cores=8)),
        ("spark://h:7077", {MOST: "9", EACH: "4"}, Expected(cores=8)),
        ("yarn", {"spark.executor.instances": "5"}, Expected(executors=5)),
        ("yarn", {}, Expected(executors=2)),
        ("k8s://h", {"spark.executor.instances": "x"}, Expected()),
    ],
)
def test_the_settings_say_which_executors_there_will_be(master, settings, what):
    assert expected(master, settings) == what


@pytest.mark.parametrize(
    ("what", "there", "wait_s", "answer"),
    [
        # local[N]: at once.
        (Expected(executors=0), Registered(0, 0, 0.0), 0.0, True),
        # As many as the settings promise: at once. Fewer: not before they have come, however long that takes.
        (Expected(executors=3), Registered(3, 3, 0.0), 0.0, True),
        (Expected(executors=3), Registered(2, 2, 500.0), 0.0, False),
        # As many cores as the application may have: at once.
        (Expected(cores=8), Registered(2, 8, 0.0), 0.0, True),
        (Expected(cores=8), Registered(2, 4, 29.0), 0.0, False),
        # A standalone cluster may have no room for more: what has not come half a minute after the last does not come.
        (Expected(cores=8), Registered(2, 4, 30.0), 0.0, True),
        (Expected(), Registered(2, 4, 9.0), 0.0, False),
        (Expected(), Registered(2, 4, 10.0), 0.0, True),
        # An executor has come or gone more recently than the caller is willing to wait: another may come.
        (Expected(), Registered(1, 1, 59.0), 60.0, False),
        (Expected(cores=2), Registered(1, 1, 59.0), 60.0, False),
        (Expected(), Registered(1, 1, 60.0), 60.0, True),
        # All that may come are there.
        (Expected(cores=2), Registered(2, 2, 1.0), 60.0, True),
        (Expected(executors=0), Registered(0, 0, 1.0), 60.0, True),
    ],
)
def test_more_slots_are_waited_for_only_while_they_may_come(what, there, wait_s, answer):
    assert what.all_there(there, wait_s=wait_s) is answer


def test_slots_that_come_while_a_job_waits_for_those_of_another_are_noticed():
    counts = iter([1, 1, 1, 2])
    said = []
    with reserve("app", "first", 1, lambda: 1, 0.0, said.append):
        with reserve("app", "second", 1, lambda: next(counts), 600.0, said.append):
            assert next(counts, None) is None
    assert said == ["second waits for 1 slots; first holds 1, 0 of 1 are free"]
