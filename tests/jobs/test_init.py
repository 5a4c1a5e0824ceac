"""What `lakelens init` writes is a project that works: its experiment file is read, its Trial found."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from child_processes import run_to_end
from result_keys import result_keys

from lakelens.jobs.cli import main
from lakelens.training.configuration.experiment import ExperimentConfig

pytestmark = pytest.mark.unit


def written_defaults(project: Path) -> dict[str, Any]:
    """The parameters that a project's DAGs begin with."""
    return runpy.run_path(str(project / "airflow" / "lakelens_steps.py"))["DEFAULTS"]


def init(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, dict[str, Any]]:
    code = main(["init", *flags])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert code or set(result) == set(result_keys()["init", ""])
    return code, result


def test_a_project_names_the_users_table_everywhere(tmp_path, capsys):
    folder = tmp_path / "birds"
    table = "s3://lake/tables/birds"
    code, result = init(
        capsys, str(folder), "--table", table, "--source", "s3://lake/photos", "--model", "bird-names", "--airflow"
    )
    assert code == 0
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == set(result["written"])
    config = ExperimentConfig.read(folder / "experiment.yaml")
    assert (config.data.table, config.entrypoint, config.tracking.experiment) == (
        table,
        "trial.py:BirdNamesTrial",
        "bird-names",
    )
    assert "class BirdNamesTrial(lakelens.KerasTrial):" in (folder / "trial.py").read_text()
    given = written_defaults(folder)
    assert (given["source"], given["table"], given["model"]) == ("s3://lake/photos", table, "bird-names")
    assert given["trial"] == f"{folder}/trial.py:BirdNamesTrial"


@pytest.mark.parametrize(
    ("flags", "folders"),
    [((), set()), (("--airflow",), {"airflow"}), (("--airflow", "--databricks"), {"airflow", "databricks"})],
)
def test_files_for_a_scheduler_are_written_on_request(flags, folders, tmp_path, capsys):
    init(capsys, str(tmp_path), *flags)
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"notebooks", *folders}


def test_quotes_and_backslashes_of_a_path_reach_the_dags(tmp_path, capsys):
    source = r"s3://lake/my \1 \"best\" photos"
    init(capsys, str(tmp_path), "--source", source, "--airflow")
    assert written_defaults(tmp_path)["source"] == source


def test_files_that_are_there_stay_and_a_dry_run_writes_nothing(tmp_path, capsys):
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


def test_a_read_only_folder_is_wrong_input_and_stays_empty(tmp_path):
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("root can write everywhere, and setpriv is not there to drop that")
    tmp_path.chmod(0o555)
    dropped = "-dac_override,-dac_read_search"  # root obeys permission bits too
    without = ["setpriv", f"--bounding-set={dropped}", f"--inh-caps={dropped}"] if os.geteuid() == 0 else []
    command = [*without, sys.executable, "-m", "lakelens.jobs.cli", "init"]
    for folder, missing in (("project", "project"), (".", "")):
        done = run_to_end([*command, folder], 2, cwd=tmp_path)
        message = json.loads(done.stdout.splitlines()[-1])["message"]
        assert message.startswith(f"folder = {str(tmp_path / missing)!r} cannot be written: {tmp_path} is read-only")
    assert list(tmp_path.iterdir()) == []


def test_a_file_where_a_folder_has_to_be_is_wrong_input_and_nothing_is_written(tmp_path, capsys):
    (tmp_path / "notebooks").write_text("")
    for folder in (tmp_path, tmp_path / "notebooks"):
        code, result = init(capsys, str(folder))
        assert (code, result["error"]) == (2, "InvalidArgumentError")
        assert f"{tmp_path / 'notebooks'} is a file" in result["message"]
    assert [path.name for path in tmp_path.iterdir()] == ["notebooks"]
