"""What `lakelens init` writes is a project that works: its experiment file is read, its Trial found."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from lakelens.jobs.cli import main
from lakelens.jobs.contracts import CONTRACTS
from lakelens.training.configuration.experiment import ExperimentConfig

pytestmark = pytest.mark.unit


def init(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, dict[str, Any]]:
    code = main(["init", *flags])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert code or set(result) == set(CONTRACTS["init"].result.split())
    return code, result


def test_a_project_names_the_users_table_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "birds"
    table = "s3://lake/tables/birds"
    code, result = init(capsys, str(folder), "--table", table, "--source", "s3://lake/photos", "--model", "bird-names")
    assert code == 0
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == set(result["written"])
    config = ExperimentConfig.read(folder / "experiment.yaml")
    assert (config.data.table, config.entrypoint, config.tracking.experiment) == (
        table,
        "trial.py:BirdNamesTrial",
        "bird-names",
    )
    assert "class BirdNamesTrial(lakelens.Trial):" in (folder / "trial.py").read_text()
    spec = importlib.util.spec_from_file_location("written_steps", folder / "airflow" / "lakelens_steps.py")
    assert spec is not None
    assert spec.loader is not None
    steps = importlib.util.module_from_spec(spec)
    sys.modules["written_steps"] = steps
    spec.loader.exec_module(steps)
    given = steps.DEFAULTS
    assert (given["source"], given["table"], given["model"]) == ("s3://lake/photos", table, "bird-names")
    assert given["trial"] == f"{folder}/trial.py:BirdNamesTrial"


def test_a_catalog_name_becomes_catalog_and_schema_of_the_bundle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    init(capsys, str(tmp_path), "--table", "lake.nature.birds")
    bundle = (tmp_path / "databricks" / "databricks.yml").read_text()
    for default in ("lake", "nature", "lake.nature.birds", "${workspace.file_path}/trial.py:BirdsTrial"):
        assert f"    default: {default}\n" in bundle


def test_files_that_are_there_stay_and_a_dry_run_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "project"
    code, planned = init(capsys, str(folder), "--dry-run")
    assert (code, planned["written"], folder.exists()) == (0, [], False)
    folder.mkdir()
    (folder / "trial.py").write_text("mine")
    _, result = init(capsys, str(folder))
    assert result["kept"] == ["trial.py"]
    assert (folder / "trial.py").read_text() == "mine"
    assert init(capsys, str(folder / "trial.py"))[0] == 2
    assert init(capsys, str(folder), "--model", "a b")[0] == 2
