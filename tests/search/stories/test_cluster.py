"""Rules of searches on a real two-executor Spark: barrier jobs side by side, a lost executor, two searches at once."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from child_processes import children_started_with, started_with
from journals import events_in

from lakelens.errors import NotEnoughSlotsError
from lakelens.search import SearchResult
from lakelens.search.running.run import search
from lakelens.training.runner.spark.slots import reserve, total_slots

pytestmark = [pytest.mark.spark, pytest.mark.long]


@pytest.fixture
def random_search(keys) -> dict[str, Any]:
    keys["searcher"] = {"name": "random", "max_trials": 3, "metric": "val_loss", "max_length": {"epochs": 6}}
    keys["resources"] = {"max_slots": 2, "env": {"STEP_S": "0.5"}}
    keys["min_checkpoint_period"] = {"epochs": 1}
    return keys


def test_trials_run_on_executors_side_by_side_and_a_lost_executor_takes_only_its_own(random_search, spark):
    random_search["max_restarts"] = 1
    found: list[SearchResult] = []
    thread = threading.Thread(target=lambda: found.append(search(random_search, spark=spark)))
    thread.start()
    runs = Path(random_search["checkpoint_storage"]["path"])
    while len({manifest.parents[1] for manifest in runs.glob("*/epoch-*/manifest.json")}) < 2:
        thread.join(0.1)
        assert thread.is_alive()
    _executor_of_a_rank().kill()
    thread.join(240)
    (result,) = found
    frame = result.trials()
    assert set(frame["state"]) == {"completed"}
    assert sum(frame["restarts"]) in (1, 2)  # both trials may have been on the same executor
    events = events_in(random_search)
    launched = [event for event in events if event["event"] == "launched"]
    assert {tuple(event["slots"]) for event in launched} == {(0,), (1,)}
    assert max(event["from_length"] for event in launched) >= 1  # it went on from its checkpoint
    pools = [spark.sparkContext._jsc.sc().getPoolForName(f"lakelens-slot-{slot}") for slot in (0, 1)]
    assert all(pool.isDefined() for pool in pools)


def test_a_search_ends_when_others_keep_the_slots_that_it_waits_for(random_search, spark):
    random_search["resources"] = {"max_slots": 1, "slots_wait_s": 1}
    slots = total_slots(spark, 60)  # of a session that has just started, too
    with (
        reserve(spark.sparkContext.applicationId, "another training", slots, lambda: slots, 1, print),
        pytest.raises(NotEnoughSlotsError, match="another training holds"),
    ):
        search(random_search, spark=spark)
    assert [event["event"] for event in events_in(random_search)].count("paused") == 3


def _executor_of_a_rank() -> psutil.Process:
    for rank in children_started_with("lakelens-rank=0"):
        with contextlib.suppress(psutil.Error):
            for parent in rank.parents():
                if started_with(parent, "org.apache.spark.executor.CoarseGrainedExecutorBackend"):
                    return parent
    raise AssertionError("no rank runs on an executor")


@pytest.mark.timeout(1500)
def test_two_searches_in_one_application_share_its_slots_and_none_waits_with_half_of_its(
    random_search, spark, tmp_path
):
    both = []
    for name in ("one", "other"):
        resources = {"slots_per_trial": 2, "env": {"STEP_S": "0.1"}}
        searcher = {**random_search["searcher"], "max_trials": 2, "max_length": {"epochs": 1}}
        storage = {"path": str(tmp_path / name)}
        both.append({**random_search, "resources": resources, "searcher": searcher, "checkpoint_storage": storage})
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda keys: search(keys, spark=spark), both))
    assert [result.states for result in found] == [{"completed": 2}, {"completed": 2}]
    for keys in both:
        launched = [event for event in events_in(keys) if event["event"] == "launched"]
        assert all(len(event["slots"]) == 2 for event in launched)
