"""Rules of names that MLflow takes, and of what happens to values that a store refuses, on real stores."""

from __future__ import annotations

import math

import pytest

from lakelens.tracking.heartbeat import HEARTBEAT_TAG, Heartbeat
from lakelens.tracking.names import NAMES_TAG, RunNames, changed_names, metric_of, names_of, names_text, nearest_name
from lakelens.tracking.run_listing import show_run
from lakelens.tracking.run_values import WARNINGS_TAG
from lakelens.tracking.run_writer import RecordFile, RunRecord, RunWriter
from lakelens.tracking.runs import METRIC_TAG, measured_points, open_client, tracked_run


@pytest.mark.unit
@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("val_loss", "val_loss"),
        ("a/b c-d.e", "a/b c-d.e"),
        ("größe", "größe"),
        ("recall@0.5", "recall_at_0.5"),
        ("f1(macro)", "f1_macro_"),
        ("lr, %", "lr_ _"),
        ("a\nb\n", "a_b_"),
        ("/top//k/", "top/k"),
        ("../up", "_/up"),
        ("a/./b/..", "a/b/_"),
        ("", "_"),
        (".", "_"),
    ],
)
def test_a_name_becomes_the_nearest_one_that_mlflow_takes(name, own):
    assert nearest_name(name) == nearest_name(own) == own


@pytest.mark.unit
def test_two_names_that_become_one_are_both_kept_in_any_order():
    assert RunNames().of(["f1@5", "f1_at_5", "f1#"]) == {"f1@5": "f1_at_5_2", "f1_at_5": "f1_at_5", "f1#": "f1_"}
    names = RunNames()
    assert [names.of([name])[name] for name in ("p#", "p%", "p_")] == ["p_", "p__2", "p__3"]
    assert RunNames(["p_", "p__2"], names.changed).of(["p%", "p#", "p&"]) == {"p%": "p__2", "p#": "p_", "p&": "p__4"}
    long = ["x" * 300 + end for end in "abc"]
    assert sorted(map(len, RunNames().of(long).values())) == [250] * 3
    assert len(set(RunNames().of(long).values())) == 3
    assert changed_names({NAMES_TAG: names_text(names.changed, 20)}) == {"p#": "p_"}


@pytest.mark.system
def test_names_that_mlflow_refuses_are_in_the_run_under_names_of_their_own(store, tmp_path, caplog):
    tags = {METRIC_TAG: "val_top@5:max", "team?": "a"}
    with tracked_run(store, "names", tags=tags, params={"drop|out": 0.5, "drop_out": "b"}) as run:
        RecordFile(tmp_path).add(RunRecord({"val_top@5": 0.25, "val_top_at_5": 0.75}, 1, {"units[0]": 8}))
        with RunWriter(run, tmp_path) as writer:
            writer.log(RunRecord({"best_val_top@5": 0.5}, 1))
            writer.finish()
    found = open_client(store).get_run(run.run_id)
    assert found.data.metrics == {"val_top_at_5": 0.75, "val_top_at_5_2": 0.25, "best_val_top_at_5": 0.5}
    assert found.data.params == {"drop_out_2": "0.5", "drop_out": "b", "units_0_": "8"}
    assert (found.data.tags["team_"], changed_names(found.data.tags)["team?"]) == ("a", "team_")
    assert (metric_of(found, "val_top@5"), names_of(found).of(["val_top@5"])) == (0.25, {"val_top@5": "val_top_at_5_2"})
    assert show_run(run.run_id, store).summary.value == 0.5
    assert {point.key for point in measured_points(store, run.run_id)} == {"val_top@5", "val_top_at_5"}
    assert caplog.text.count("'val_top@5' as") == 1
    assert WARNINGS_TAG not in found.data.tags


@pytest.mark.system
def test_values_that_the_store_refuses_stop_nothing_and_are_warnings_of_the_run(store, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("lakelens.tracking.run_writer.RENEW_S", 0.0)
    many = {f"p{number}": number for number in range(230)} | {"long": "x" * 7000}
    with tracked_run(store, "refused", params={"epochs": 1, "units": 2}) as run:
        records = RecordFile(tmp_path)
        records.add(RunRecord({"loss": 1.0}, 1, {"epochs": 2, **many, "units": 3}))
        records.add(RunRecord({"gap": None, "loss": 0.5, "words": "many"}, 2))  # type: ignore[dict-item]
        records.add(RunRecord({"gap": math.nan, "loss": math.inf, "words": 3.0}, 3))
        with RunWriter(run, tmp_path) as writer:
            first = Heartbeat.parse(open_client(store).get_run(run.run_id).data.tags[HEARTBEAT_TAG])
            writer.finish()
    found = open_client(store).get_run(run.run_id)
    assert found.info.status == "FINISHED"
    assert (found.data.params["epochs"], found.data.params["p229"], len(found.data.params)) == ("1", "229", 233)
    assert len(found.data.params["long"]) == 6000
    assert (found.data.metrics["words"], math.isnan(found.data.metrics["gap"])) == (3.0, True)
    assert [point.step for point in open_client(store).get_metric_history(run.run_id, "loss")] == [1, 2, 3]
    lines = found.data.tags[WARNINGS_TAG].splitlines()
    assert [line.partition(" was refused")[0] for line in lines] == [
        "parameter 'epochs' = '2'",
        "parameter 'units' = '3'",
        "metric 'gap' = 'None'",
        "metric 'words' = 'many'",
    ]
    assert Heartbeat.parse(found.data.tags[HEARTBEAT_TAG]).time > first.time
    assert caplog.text.count("lacks a value") == 4
    assert list(tmp_path.iterdir()) == []


@pytest.mark.system
def test_what_a_resumed_run_lacks_is_added_to_its_warnings(store, tmp_path):
    with tracked_run(store, "again", params={"a": 1}) as run:
        for value in (2, 3):
            RecordFile(tmp_path).add(RunRecord(params={"a": value}))
            with RunWriter(run, tmp_path) as writer:
                writer.finish()
    lines = open_client(store).get_run(run.run_id).data.tags[WARNINGS_TAG].splitlines()
    assert [line.split(" was")[0] for line in lines] == ["parameter 'a' = '2'", "parameter 'a' = '3'"]
