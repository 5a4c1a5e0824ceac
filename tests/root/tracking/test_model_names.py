"""Names and aliases of registered models are those that MLflow takes, with a real store."""

from __future__ import annotations

import pytest

from lakelens.errors import ConfigurationError, InvalidArgumentError
from lakelens.tracking.names import require_alias, require_model_name
from lakelens.tracking.runs import open_client
from lakelens.training.checkpoints.references import version_numbers
from lakelens.training.configuration.experiment import ExperimentConfig

NAMES = ("birds", "kid's photos", 'the "best"', 'kid\'s "best"', "lake.nature.owls", "a@b", "Ünì", "x; y", "a%b")
ALIASES = ("champion", "A-b_1", "vv1", "v1a", "5", "früh")
NO_NAMES = ("", " ", "a/b", "a:b", ".", "..", "..owls", "...")
NO_ALIASES = ("", "v1", "a\tb", "a@b", "V22", "latest", "Latest", "with space", "a/b", "a.b", "a" * 256)


@pytest.mark.system
def test_names_and_aliases_are_valid_where_mlflow_takes_them_and_refused_where_it_refuses_them(store: str) -> None:
    from mlflow.exceptions import MlflowException

    client = open_client(store)
    for name in NAMES:
        client.create_registered_model(name)
        client.create_model_version(name, "file:/models/1")
        require_model_name(name)
        assert version_numbers(client, name) == [1]
    for alias in ALIASES:
        client.set_registered_model_alias("birds", alias, "1")
        require_alias(alias)
    for name in NO_NAMES:
        with pytest.raises(MlflowException):
            client.create_registered_model(name)
        with pytest.raises(InvalidArgumentError, match="cannot name a registered model"):
            require_model_name(name)
    for alias in NO_ALIASES:
        with pytest.raises(MlflowException):
            client.set_registered_model_alias("birds", alias, "1")
        with pytest.raises(InvalidArgumentError, match="give 1 to 200 letters"):
            require_alias(alias)


@pytest.mark.unit
def test_a_training_that_could_not_be_registered_is_refused_before_it_begins() -> None:
    with pytest.raises(ConfigurationError, match=r"tracking.register_as is 'a/b'.*without '/' and ':'"):
        ExperimentConfig.read({"data": {"table": "t"}, "tracking": {"register_as": "a/b"}})
