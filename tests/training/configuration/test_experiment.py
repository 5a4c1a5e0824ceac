"""The experiment file: what it takes, what it refuses, and the words that a user sees."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from pydantic import BaseModel

from lakelens.errors import ConfigurationError
from lakelens.training.configuration.experiment import ExperimentConfig, require_single
from lakelens.training.configuration.lengths import Length
from lakelens.training.configuration.space import constants
from lakelens.training.configuration.yaml_file import parse_value

pytestmark = pytest.mark.unit

WHOLE = """\
name: digits
description: scanned digits
labels: [demo]
entrypoint: model.py:Digits
data:
  table: tables/digits
  version: 3
  filters: {source: scanner}
hyperparameters:
  global_batch_size: 32
  learning_rate: 1e-3
  optimizer: {name: sgd, momentum: {type: const, val: 0.9}}
searcher: {name: single, metric: val_accuracy, max_length: {epochs: 9}}
resources: {slots_per_trial: 2, strategy: horovod_local}
max_restarts: 2
early_stopping: {patience: 3}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "experiment.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def config(**keys: Any) -> ExperimentConfig:
    return ExperimentConfig.read({"data": {"table": "t"}, **keys})


def test_numpys_numbers_are_pythons() -> None:
    read = config(hyperparameters={"rate": np.float32(0.5), "nested": {"sizes": [np.int64(3)]}})
    assert read.model_dump(mode="json")["hyperparameters"] == {"rate": 0.5, "nested": {"sizes": [3]}}
    assert type(read.hyperparameters["rate"]) is float


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    read = ExperimentConfig.read(write(tmp_path, WHOLE))
    assert (read.data.table, read.data.version, read.searcher.max_length) == ("tables/digits", 3, Length(epochs=9))
    assert read.goal.mode == "max"
    assert constants(read.hyperparameters) == {
        "global_batch_size": 32,
        "learning_rate": 0.001,
        "optimizer": {"name": "sgd", "momentum": 0.9},
    }
    assert ExperimentConfig.read(read.model_dump()) == read
    assert ExperimentConfig.read(read) == read


def test_a_table_alone_is_an_experiment() -> None:
    read = config()
    assert read.goal.metric == "val_loss"
    assert read.global_batch_size == 64
    assert (read.data.version, read.searcher.max_length.amount, read.max_restarts) == ("latest", 10, 0)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-3", 0.001), ("1.5E2", 150.0), ("yes", "yes"), ("012", 12), ("1:30", "1:30"), ("true", True)],
)
def test_values_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    assert parse_value(text, "test") == value
    assert type(parse_value(text, "test")) is type(value)


def test_overrides_are_applied_in_their_order(tmp_path: Path) -> None:
    path = write(tmp_path, WHOLE)
    read = ExperimentConfig.read(path, ["hyperparameters.learning_rate=1e-2", "data.version=4", "data.version=5"])
    assert (read.hyperparameters["learning_rate"], read.data.version) == (0.01, 5)


RESTORED = {"patience": 1, "restore_best_weights": True}
UNVALIDATED = {"table": "t", "validation_split": None}
MIRRORED = {"strategy": "mirrored", "slots_per_trial": 2}
REJECTED: list[tuple[dict[str, Any], str]] = [
    ({"dta": 1}, "dta is 1: there is no such key; did you mean 'data'?"),
    ({"data": {"tabel": "t"}}, "data.table: a required key is missing, as in data: {table: tables/photos}"),
    ({"data": {"table": "t", "split": "a"}}, "data.split is 'a': there is no such key; did you mean"),
    ({"data": {"table": "t", "version": -1}}, "data.version is -1: versions count from 0"),
    ({"data": {"table": "t", "image_size": 0}}, "data.image_size is 0: give one side or [height, width]"),
    ({"task": "clasification"}, "must be one of 'classification', 'detection' (did you mean 'classification'?)"),
    ({"max_restarts": -1}, "max_restarts is -1: must be at least 0"),
    ({"searcher": {"max_length": {"epochs": 1, "batches": 2}}}, "give exactly one of epochs, batches and records"),
    ({"searcher": {"max_length": {}}}, "give exactly one of epochs, batches and records; none given"),
    ({"searcher": {"metric": "validation_loss"}}, "metric validation_loss (did you mean 'val_loss'?) does not imply"),
    ({"searcher": {"metric": "acuracy"}}, "metric acuracy (did you mean 'accuracy'?) does not imply"),
    ({"data": "tables/photos"}, "data is 'tables/photos': give keys and their values, as in data: {table"),
    ({"epochs": 5}, "epochs is 5: there is no such key at the top; write searcher: {max_length: {epochs: 10}}"),
    ({"batch_size": 8}, "write hyperparameters: {global_batch_size: 64}"),
    ({"max_trials": 3}, "max_trials is 3: there is no such key at the top; it belongs into searcher"),
    ({"searcher": {"max_time": 3}}, "has no meaning here: use searcher.max_length"),
    ({"resources": {"strategy": "single", "slots_per_trial": 2}}, "strategy single is one process"),
    ({"resources": {"max_slots": 1, "slots_per_trial": 2}}, "max_slots 1 is less than slots_per_trial 2"),
    ({"resource_pool": "gpu"}, "is a key of Determined that has no meaning here: a Spark session"),
    ({"searcher": {"max_steps": 100}}, "here: use searcher.max_length, as in {batches: 1000} (a step was"),
    ({"searcher": {"step_budget": 100}}, "here: use searcher.max_trials, and searcher.max_length, as in {batches"),
    ({"searcher": {"max_length": 1000}}, "searcher.max_length is 1000: give a length its unit: {batches: 1000}"),
    ({"min_validation_period": 5}, "min_validation_period is 5: give a length its unit: {batches: 5}"),
    ({"data": {"table": "t", "url": "s3://b/x"}}, "that has no meaning here: rows come from data.table"),
    ({"entrypoint": "python3 -m determined.launch.horovod --trial a:Digits"}, "the Trial class: a:Digits"),
    ({"entrypoint": ["python3", "train.py"]}, "is a command, as Determined's files have it"),
    ({"bind_mounts": []}, "mount folders on the machines"),
    ({"hyperparameters": {"global_batch_size": 0}}, "global_batch_size is 0: the global batch size is a whole number"),
    ({"hyperparameters": {"a": {"b": {"type": "int", "minval": 3, "maxval": 1}}}}, "a.b: minval 3 is above maxval 1"),
    ({"hyperparameters": {"lr": {"type": "double", "minval": 0, "maxval": 1}}}, "lr is a space, and searcher single"),
    ({"hyperparameters": {"a.b": 1}}, "'a.b' is not a valid name: a name is text without dots"),
    ({"continue_from": "r", "warm_start": "m"}, "give one of them"),
    ({"early_stopping": {}}, "early_stopping.patience: a required key is missing"),
    ({"early_stopping": {"patience": 0}}, "early_stopping.patience is 0"),
    ({"optimizations": {"aggregation_frequency": 0}}, "aggregation_frequency is 0: must be at least 1"),
    ({"optimizations": {"mixed_precision": "fp16"}}, "mixed_precision is 'fp16': must be one of 'float16', 'bfloat16'"),
    ({"data": {"table": "t", "bad_rows": "drop"}}, "data.bad_rows is 'drop'"),
    (
        {"hyperparameters": {"global_batch_size": 3}, "resources": {"slots_per_trial": 4}},
        "global_batch_size 3 is less than resources.slots_per_trial 4",
    ),
    ({"continue_from": "r", "searcher": {"name": "random", "max_trials": 3}}, "continues one run, and searcher random"),
    ({"checkpoint_storage": {"save_trial_best": 0, "save_trial_latest": 0}}, "but a run's model needs one"),
    ({"early_stopping": RESTORED, "checkpoint_policy": "none"}, "and checkpoint_policy none writes none"),
    ({"early_stopping": RESTORED, "checkpoint_storage": {"save_trial_best": 0}}, "storage.save_trial_best is 0"),
    ({"perform_initial_validation": True, "data": UNVALIDATED}, "perform_initial_validation needs rows to validate on"),
    ({"resources": MIRRORED | {"driver_port": 4040}}, "driver_port 4040 is for slots on executors"),
    ({"resources": MIRRORED, "optimizations": {"aggregation_frequency": 2}}, "strategy mirrored is one process"),
    ({"optimizations": {"gradient_compression": "bf16"}}, "gradient_compression is 'bf16': must be one of "),
    ({"data": UNVALIDATED, "searcher": {"metric": "val_loss"}}, "val_loss and data.validation_split is null"),
]


@pytest.mark.parametrize(("keys", "words"), REJECTED)
def test_a_rejected_key_is_named_with_its_rule(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        config(**keys)
    assert words in str(caught.value)


def test_every_problem_of_a_file_has_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, "data:\n  table: t\n  tabel: 3\nsearcher:\n  max_lenght: {epochs: 3}\n")
    with pytest.raises(ConfigurationError) as caught:
        ExperimentConfig.read(path, ["max_restarts=-1"])
    assert str(caught.value).splitlines() == [
        f"{path}: 3 problems",
        "  line 3, data.tabel is 3: there is no such key; did you mean 'table'?",
        "  line 5, searcher.max_lenght: there is no such key; did you mean 'max_length'?",
        "  --set max_restarts, max_restarts is -1: must be at least 0",
    ]
    path = write(tmp_path, "data: {table: t}\nmin_validation_period: {epochs: 11}\n")
    with pytest.raises(
        ConfigurationError, match=r"line 2, min_validation_period \(11 epochs\) is longer than searcher"
    ):
        ExperimentConfig.read(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: [1", "line 1"),
        ("name: a\nname: b\n", "duplicate key"),
        ("- a\n", "holds a list at its top level"),
        ("", "holds nothing at its top level"),
    ],
)
def test_a_file_that_is_no_mapping_or_does_not_exist_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        ExperimentConfig.read(write(tmp_path, text))
    with pytest.raises(ConfigurationError, match=r"absent\.yaml does not exist"):
        ExperimentConfig.read(tmp_path / "absent.yaml")


@pytest.mark.parametrize("override", ["abc", "=1", "a..b=1", "name.x=1"])
def test_an_override_that_leads_nowhere_is_refused(tmp_path: Path, override: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--set"):
        ExperimentConfig.read(write(tmp_path, WHOLE), [override])


@pytest.mark.parametrize("name", ["random", "grid", "adaptive_asha"])
def test_a_search_is_not_a_single_training(name: str) -> None:
    read = config(searcher={"name": name} if name == "grid" else {"name": name, "max_trials": 3})
    with pytest.raises(ConfigurationError, match=rf"searcher\.name is {name}.*use lakelens\.search"):
        require_single(read)


@pytest.mark.parametrize(
    ("length", "steps"), [({"epochs": 2}, 20), ({"batches": 7}, 7), ({"records": 65}, 3), ({"records": 64}, 2)]
)
def test_lengths_become_steps(length: dict[str, int], steps: int) -> None:
    assert Length(**length).steps(global_batch_size=32, steps_per_epoch=10) == steps


def test_the_image_size_of_a_resolved_experiment_is_its_height_and_width() -> None:
    assert config(data={"table": "t", "image_size": [24, 32]}).image_size == (24, 32)
    assert config(data={"table": "t", "image_size": 24}).image_size == (24, 24)


WRONG: list[Any] = [None, "x", "", -1, 0, 1.5, True, [], [1], {}, {"a": 1}, float("nan"), 10**400]


def keys_of(section: str) -> list[str]:
    """The keys of a section; none of another key."""
    annotation = ExperimentConfig.model_fields[section].annotation
    models = [each for each in (annotation, *get_args(annotation)) if isinstance(each, type)]
    return [key for each in models if issubclass(each, BaseModel) for key in each.model_fields]


@pytest.mark.parametrize("section", sorted(ExperimentConfig.model_fields))
def test_no_sentence_of_pydantic_reaches_a_user(section: str) -> None:
    """Each key with values of other types."""
    given: list[dict[str, Any]] = [{section: value} for value in WRONG]
    for key in keys_of(section):
        given += [{section: {**({"table": "t"} if section == "data" else {}), key: value}} for value in WRONG]
    for keys in given:
        told = ""
        try:
            config(**keys)
        except ConfigurationError as error:
            told = str(error)
        assert not re.search(r"Input should|Field required|not permitted|Value error", told), told


def test_a_file_without_a_table_is_told_how_to_name_one() -> None:
    with pytest.raises(ConfigurationError, match=r"data: a required key is missing, as in data: \{table: tables"):
        ExperimentConfig.read({"name": "x"})
