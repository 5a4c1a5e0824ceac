"""What `lakelens search preview` prints before a search runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lakelens.jobs.cli import main

pytestmark = pytest.mark.unit

EXPERIMENT = """\
data: {table: t}
hyperparameters:
  learning_rate: {type: log, minval: -5, maxval: -1}
searcher: {name: adaptive_asha, metric: val_accuracy, max_length: {epochs: 9}, max_trials: 12, divisor: 3, max_rungs: 3}
resources: {slots_per_trial: 2}
"""


@pytest.fixture
def experiment(tmp_path: Path) -> str:
    path = tmp_path / "experiment.yaml"
    path.write_text(EXPERIMENT, encoding="utf-8")
    return str(path)


def test_a_preview_shows_how_many_trials_train_how_long(experiment, capsys):
    flags = ["--set", "searcher.mode=aggressive", "--seconds-per-epoch", "60"]
    assert main(["search", "preview", experiment, *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "adaptive_asha, aggressive: 12 trials, val_accuracy, larger is better"
    assert [line.split() for line in lines[3:6]] == [
        ["1", "12", "8", "12"], ["3", "4", "3", "8"], ["9", "1", "1", "6"],
    ]  # fmt: skip
    assert any("times as much for the same number of trials" in line for line in lines)
    assert json.loads(lines[-1]) == {
        "searcher": "adaptive_asha",
        "trials": 12,
        "unit": "epochs",
        "trials_by_length": {"1": 8, "3": 3, "9": 1},
        "total": 26,
        "random_total": 108,
        "slot_hours": 0.867,  # 26 epochs of a minute on two slots
        "random_slot_hours": 3.6,
    }


@pytest.mark.parametrize("action", ["preview", "run"])
def test_a_search_without_a_space_is_refused_and_shows_how_to_write_one(experiment, action, capsys):
    ends = ("double, minval: 3, maxval: 3", "log, minval: -3, maxval: -3", "categorical, vals: [1, 1]")
    single = [f"{{rate: {{type: {end}}}}}" for end in ends]
    for space in ("{}", "{learning_rate: 0.01}", "{optimizer: {rate: {type: const, val: 3}}}", *single):
        assert main(["search", action, experiment, "--set", f"hyperparameters={space}"]) == 2
        assert "learning_rate: {type: log, base: 10, minval: -4, maxval: -1}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags", [["--seconds-per-epoch", "0"], ["--seconds-per-epoch", "9", "--set", "searcher.max_length={batches: 9}"]]
)
def test_slot_hours_are_estimated_from_seconds_above_0_and_epochs_only(experiment, flags, capsys):
    assert main(["search", "preview", experiment, *flags]) == 2
    assert "--seconds-per-epoch" in capsys.readouterr().err
