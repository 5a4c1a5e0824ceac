"""The report of a search, from journals that the real searchers decide."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from journals import SPACE, write_journal
from PIL import Image

from lakelens.jobs.cli import main
from lakelens.results import counted
from lakelens.search.journal import Journal, read_events
from lakelens.search.report.history import SearchHistory, read_history
from lakelens.search.report.importance import importance_of
from lakelens.search.report.plots import _BEST, _draw_curves, _draw_hyperparameters, rung_colours
from lakelens.search.report.write import best_experiment, render_page, write_report
from lakelens.training.configuration.experiment import ExperimentConfig
from lakelens.training.configuration.space import constants

pytestmark = pytest.mark.unit


def validated(time: float, trial: int, length: int, metric: float) -> dict[str, Any]:
    measured = {"length": length, "step": length, "epoch": length, "metric": metric, "metrics": {}}
    return {"event": "validated", "time": time, "trial": trial, "decides": False, **measured}


def rewrite_journal(folder: Path, events: list[dict[str, Any]]) -> None:
    shutil.rmtree(folder / "journal")
    Journal(folder / "journal").append(events)


# Values of any kind, and texts that must not become markup or formulas.
ODD_SPACE = {
    "kind": {"type": "categorical", "vals": [None, math.nan, [1, 2], {"name": "x"}]},
    "one": {"type": "int", "minval": 3, "maxval": 3},
    "<b>/$\\frac{": {"type": "categorical", "vals": ["<script>alert(1)</script>", "$x_1$"]},
    **SPACE,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 trials, of which one fails and the others are validated before their first step too."""
    made = tmp_path_factory.mktemp("search")
    write_journal(made, 24, failing={3}, space=ODD_SPACE)
    *events, last = read_events(made / "journal")
    launched = [event for event in events if event["event"] == "launched" and event["trial"] != 3]
    rewrite_journal(made, [*events, *(validated(event["time"], event["trial"], 0, 0.1) for event in launched), last])
    return made


@pytest.fixture(scope="module")
def history(folder: Path) -> SearchHistory:
    return read_history(folder)


def test_a_report_has_everything_and_needs_nothing_else(
    folder: Path, history: SearchHistory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 0 in set(history.curves["length"])
    assert main(["search", "report", str(folder), "--out", str(tmp_path)]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    page = Path(result["page"]).read_text(encoding="utf-8")
    for words in ("Learning curves", "Parallel coordinates", "Permutation importance", "Slots", "Trials", "shapes (64"):
        assert words in page
    assert "<script" not in page
    assert "http://" not in page
    assert "https://" not in page
    names = {"learning_curves", "parallel_coordinates", "importance", "slots", "hyperparameters"}
    assert {path.stem for path in tmp_path.glob("*.png")} == names
    for path in tmp_path.glob("*.png"):
        Image.open(path).load()
    assert ExperimentConfig.read(result["best"]).searcher.name == "single"


def test_the_best_experiment_of_a_few_trials_reads_back_with_the_values_of_the_best(tmp_path: Path) -> None:
    space = {
        **SPACE,
        "head": {"type": "categorical", "vals": [{"type": "dense", "units": [8, {"val": 1}]}]},
        "augment": {"type": "const", "val": {"flip": True}},
        "sizes": [32, 64],
        "clip": math.inf,
    }
    write_journal(tmp_path, 3, space=space)
    history = read_history(tmp_path)
    (tmp_path / "best.yaml").write_text(str(best_experiment(history)))
    read = ExperimentConfig.read(tmp_path / "best.yaml")
    assert importance_of(history).note == "3 trials validated; importance needs 10."
    best = history.best
    assert constants(read.hyperparameters) == best.hyperparameters
    assert best.hyperparameters["clip"] == math.inf
    assert (read.goal.metric, read.goal.mode, read.data.version) == ("val_accuracy", "max", 3)
    assert read.searcher.max_length.amount == 27


def test_the_best_trial_is_the_one_with_the_best_finite_metric(history: SearchHistory) -> None:
    best, finite = history.best, history.curves["metric"].loc[lambda values: values.map(math.isfinite)]
    assert best.best.metric == finite.max()
    assert best.curve[best.best.length].metric == finite.max()


def test_states_errors_spans_and_values_are_those_of_the_journal(history: SearchHistory) -> None:
    assert len(history.trials) == 24
    assert history.finished
    failed, spans = history.trials.loc[3], history.spans
    assert (failed["state"], failed["length"]) == ("failed", 0)
    assert "shapes" in failed["error"]
    assert list(spans.loc[spans["failed"], "trial"]) == [3]
    assert (spans["start"] < spans["end"]).all()
    assert spans["end"].max() <= history.end - history.start
    assert sorted(spans["slot"].unique()) == [0, 1]
    for _, of_slot in spans.sort_values("start").groupby("slot"):
        assert (of_slot["end"].iloc[:-1].to_numpy() <= of_slot["start"].iloc[1:].to_numpy()).all()
    assert history.values.at[0, "optimizer.name"] == history.found.all[0].hyperparameters["optimizer"]["name"]
    assert history.places.to_numpy().min() >= 0
    assert history.places.to_numpy().max() <= 1


def test_a_search_whose_driver_was_killed_has_a_report_of_what_there_is(tmp_path: Path) -> None:
    write_journal(tmp_path, 24)
    for entry in sorted((tmp_path / "journal").iterdir())[50:]:
        entry.unlink()
    history = read_history(tmp_path)
    assert not history.finished
    assert history.spans["end"].max() <= history.end - history.start
    assert "not finished" in render_page(history, {}, importance_of(history), best_experiment(history))


def test_a_kill_leaves_a_gap_on_the_slots(tmp_path: Path) -> None:
    config = write_journal(tmp_path, 3)
    events: list[dict[str, Any]] = [
        {"event": "started", "time": 0, "config": config.model_dump(mode="json", exclude_unset=True)},
        {"event": "created", "time": 0, "trial": 0, "hyperparameters": {}, "length": 9},
        {"event": "launched", "time": 1, "trial": 0, "slots": [0], "from_length": 0, "run_id": "run"},
        validated(5, 0, 1, math.nan),
        {"event": "resumed", "time": 90},
        {"event": "launched", "time": 100, "trial": 0, "slots": [1], "from_length": 1, "run_id": "run"},
        {"event": "restarted", "time": 105, "trial": 0, "length": 1, "error": "rank 0 died"},
    ]
    rewrite_journal(tmp_path, events)
    history = read_history(tmp_path)
    assert history.spans[["start", "end", "failed"]].to_numpy().tolist() == [[1, 5, False], [100, 105, True]]
    assert math.isnan(history.trials.at[0, "metric"])


def test_a_search_of_which_every_trial_failed_has_a_report(tmp_path: Path) -> None:
    write_journal(tmp_path, 4, failing=range(100))
    page = write_report(tmp_path, tmp_path / "out").read_text(encoding="utf-8")
    assert "No trial has been validated" in page
    assert not (tmp_path / "out" / "best.yaml").exists()
    assert [path.name for path in (tmp_path / "out").glob("*.png")] == ["slots.png"]


def test_importance_finds_what_decides(tmp_path: Path) -> None:
    write_journal(tmp_path, 60)
    found = importance_of(read_history(tmp_path))
    assert next(iter(found.shares)) == "learning_rate"
    assert found.shares["learning_rate"] > 0.5 > found.shares["layers"]
    assert sum(found.shares.values()) == pytest.approx(1)
    assert 0.3 < found.explained <= 1


def test_legend_and_facts_count_each_trial_once_by_the_rung_at_which_it_ended(history: SearchHistory) -> None:
    drawn = history.drawn["length"]
    ends, counts = history.ends(drawn), drawn.map(history.rung_of).value_counts()
    assert ends == {history.rung_of(length): history.lengths(length) for length in drawn.unique()}
    axis = _draw_curves(history).axes[0]
    labels = axis.get_legend_handles_labels()[1][1:]
    assert labels == [f"ended at {text}: {counted(int(counts[rung]), 'trial')}" for rung, text in ends.items()]
    assert sum(counts) == len(history.trials) - (history.trials["state"] == "failed").sum()
    lines = {line.get_color() for line in axis.lines if len(line.get_xdata()) > 1 and line.get_color() != _BEST}
    assert lines <= {rung_colours(len(history.rungs))[rung] for rung in ends}


def test_axes_have_whole_epochs_and_possible_values_and_rungs_are_those_of_all_brackets(tmp_path: Path) -> None:
    space = {
        "filters": {"type": "categorical", "vals": [8, 16]},
        "rate": {"type": "log", "base": 10, "minval": -4, "maxval": -1.5},
        **SPACE,
        "layers": {"type": "int", "minval": 1, "maxval": 4},
    }
    write_journal(tmp_path, 4, max_length={"epochs": 4}, divisor=2, space=space)
    history = read_history(tmp_path)
    assert history.rungs == [1, 2, 4]  # though no trial is planned to end at one of them
    epochs = [tick for tick in _draw_curves(history).axes[0].get_xticks() if 0 < tick < 5]
    assert epochs == [1, 2, 3, 4]
    figure = _draw_hyperparameters(history, ["filters", "layers", "rate"])
    texts = [[label.get_text() for label in axis.get_xticklabels()] for axis in figure.axes]
    assert texts == [["8", "16"], ["1", "2", "3", "4"], ["0.0001", "0.001", "0.01"]]
    drawn = {round(float(x), 6) for x in figure.axes[0].collections[0].get_offsets()[:, 0]}
    assert drawn <= {0.0, 1.0}
