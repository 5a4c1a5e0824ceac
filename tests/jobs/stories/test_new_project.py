"""The commands that a project of `lakelens init` begins with run on the files that were written."""

from __future__ import annotations

import json
import runpy

import pytest

from lakelens.jobs.cli import main

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(600)]


def test_a_new_project_ingests_and_trains(spark, tmp_path, capsys, monkeypatch):
    from PIL import Image

    from lakelens.tracking.run_listing import show_run

    for name in ("red", "green", "blue"):
        for number in range(24):
            file = tmp_path / "photos" / name / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            shade = Image.new("RGB", (16, 16), name)
            shade.putpixel((number % 16, number // 16), (255, 255, 255))
            shade.save(file)
    project = tmp_path / "project"
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    assert main(["init", "project", "--table", "tables/colours", "--source", "photos", "--airflow"]) == 0

    steps = runpy.run_path(str(project / "airflow" / "lakelens_steps.py"))
    parameters = {**steps["DEFAULTS"], "size": 16}
    assert main(steps["ETL"].filled(lambda name: str(parameters[name]), lambda step, key: "")) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["stored"] == 72
    monkeypatch.chdir(project)
    short = ("searcher.max_length.epochs=1", "hyperparameters.global_batch_size=16")
    assert main(["train", "experiment.yaml", *(word for key in short for word in ("--set", key))]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["version"] == 0
    found = show_run(result["run_id"])
    assert found.summary.table == str(tmp_path / "tables" / "colours")
