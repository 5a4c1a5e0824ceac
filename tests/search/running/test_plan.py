"""What is known of a search before its first trial."""

from __future__ import annotations

import pytest

from lakelens.errors import SessionError
from lakelens.search.running.places import Place
from lakelens.search.running.trial_runs import PlannedTrial, plan_search, searcher_of
from lakelens.training.configuration.experiment import ExperimentConfig

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("size", "largest"),
    [
        (100, 100),
        ({"type": "categorical", "vals": [16, 128, 32]}, 128),
        ({"type": "int", "minval": 16, "maxval": 91}, 91),
        ({"type": "const", "val": 90}, None),
        (None, None),  # the default is 64
    ],
)
def test_a_batch_larger_than_the_split_and_equal_splits_are_warnings_once_in_a_search(keys, size, largest, caplog):
    del keys["hyperparameters"]["global_batch_size"]
    keys["hyperparameters"] |= {} if size is None else {"global_batch_size": size}
    keys["data"]["validation_split"] = "train"
    plan = plan_search(ExperimentConfig.read(keys))
    for number in range(2):
        PlannedTrial.of(plan, searcher_of(plan.config).hyperparameters(number))
    *larger, same = [record.message for record in caplog.records]
    assert same.startswith("the training split (train) contains the validation split (train)")
    told = [f"global_batch_size {largest} is larger than the training split (train), which has 90 rows"]
    assert [message.partition(":")[0] for message in larger] == (told if largest is not None else [])


class ConnectSession:
    """Known by its module; nothing asks it anything."""

    __module__ = "pyspark.sql.connect.session"


def test_a_search_on_the_executors_of_a_connect_session_is_refused_before_its_run_begins(keys):
    config = ExperimentConfig.read({**keys, "resources": {"strategy": "horovod_cluster"}})
    with pytest.raises(SessionError, match="this is a Spark Connect session"):
        plan_search(config, spark=ConnectSession())
    with pytest.raises(SessionError, match="this is a Spark Connect session"):
        Place.of(plan_search(config, spark=lambda: ConnectSession()), ConnectSession())
