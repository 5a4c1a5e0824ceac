"""The demo tells the truth: everything that it claims is read back from what it has left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from connect_server import connect_server

pytestmark = [pytest.mark.spark, pytest.mark.horovod, pytest.mark.timeout(1000)]


def demo(*flags: str, **variables: str) -> tuple[subprocess.CompletedProcess[str], dict]:
    options = os.environ.get("JAVA_TOOL_OPTIONS", "").split()
    users = " ".join(option for option in options if not option.startswith("-Dspark."))
    done = subprocess.run(
        [sys.executable, "-m", "lakelens.jobs.cli", "demo", *flags],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env={**os.environ, "JAVA_TOOL_OPTIONS": users, **variables},
    )
    return done, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
def test_the_demo_shows_that_the_data_version_made_the_difference(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    done, summary = demo("--out", str(out))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert summary["versions"] == [0, 1]
    for counts in summary["rows"]:
        assert counts["in"] == counts["stored"] + counts["quarantined"] + counts["skipped"]
    assert summary["rows"][0] == {"in": 1629, "stored": 1627, "quarantined": 2, "skipped": 0}
    assert summary["rows"][1] == {"in": 1799, "stored": 170, "quarantined": 0, "skipped": 1629}
    assert summary["recall_after"] > summary["recall_before"] + 0.3
    assert summary["accuracy_after"] >= 0.95
    assert summary["version_0_unchanged"] is True
    assert "quarantined: 001_truncated.jpg: truncated" in done.stdout
    assert summary["most_improved_class"] == "eight"
    assert (out / "evaluation" / "comparison.png").stat().st_size > 10_000
    assert "The class that gained most is <b>eight</b>" in (out / "evaluation" / "evaluation.html").read_text()

    from snapshots import open_snapshot

    from lakelens.tracking.runs import open_client

    assert open_snapshot(str(out / "tables" / "images"), 0).rows == 1627
    assert open_snapshot(summary["predictions"]["path"]).rows == summary["predictions"]["rows"]
    client = open_client(f"sqlite:///{out / 'mlflow.db'}")
    assert [client.get_run(run).data.tags["lakelens.version"] for run in summary["runs"]] == ["0", "1"]


@pytest.mark.long
def test_the_demo_runs_on_a_spark_connect_server(tmp_path: Path) -> None:
    with connect_server(tmp_path) as url:
        done, summary = demo("--out", str(tmp_path / "demo"), SPARK_REMOTE=url)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert summary["versions"] == [0, 1]
    assert summary["recall_after"] > summary["recall_before"] + 0.3
    assert summary["version_0_unchanged"] is True
    assert f"Spark on {url}, and Delta Lake" in done.stdout
    assert "--master" not in done.stdout


def test_a_folder_that_the_demo_did_not_make_is_never_removed(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("keep")
    done, summary = demo("--out", str(tmp_path))
    assert done.returncode == 2
    assert summary["error"] == "InvalidArgumentError"
    assert (tmp_path / "precious.txt").read_text() == "keep"


@pytest.mark.long
def test_the_demo_of_a_search_ends_with_its_report(tmp_path: Path) -> None:
    done, summary = demo("--search", "--out", str(tmp_path / "demo"))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert sum(summary["trials"].values()) == 12
    assert summary["value"] > 0.7
    print(summary["seconds"])

    from lakelens.tracking.runs import open_client
    from lakelens.training.configuration.experiment import ExperimentConfig

    report = Path(summary["report"])
    assert "Learning curves" in report.read_text(encoding="utf-8")
    best = ExperimentConfig.read(report.with_name("best.yaml"))
    assert best.hyperparameters == summary["hyperparameters"]
    client = open_client(f"sqlite:///{tmp_path / 'demo' / 'mlflow.db'}")
    assert "report/report.html" in [file.path for file in client.list_artifacts(summary["run_id"], "report")]


@pytest.mark.long
def test_the_demo_of_detection_brings_a_class_and_leads_from_a_wrong_box_to_its_image(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    done, summary = demo("--detection", "--out", str(out))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    print(summary["seconds"])
    assert summary["versions"] == [0, 1]
    assert summary["class"] == "seven"
    assert summary["ap50_before"] < 0.45
    assert summary["ap50_after"] > summary["ap50_before"] + 0.25
    page = (out / "evaluation" / "evaluation.html").read_text(encoding="utf-8")
    assert "The class that gained most is <b>seven</b>" in page
    assert (out / "evaluation" / "worst_00.jpg").stat().st_size > 2000

    from lakelens.tracking.runs import open_client
    from lakelens.training.configuration.experiment import ExperimentConfig

    assert ExperimentConfig.read(out / "experiment.yaml").task == "detection"
    client = open_client(f"sqlite:///{out / 'mlflow.db'}")
    assert [client.get_run(run).data.tags["lakelens.version"] for run in summary["runs"]] == ["0", "1"]
    assert client.get_run(summary["runs"][1]).data.metrics["val_map50"] >= 0.4
    files = {file.path for file in client.list_artifacts(summary["runs"][1], "validation")}
    assert files >= {f"validation/{name}" for name in ("per_class.csv", "precision_recall.png", "pictures")}
    wrong = summary["wrong_box"]
    assert (wrong["label_name"], wrong["version"]) == ("seven", 0)
    assert wrong["predicted_name"] in ("two", "four")
    assert Path(wrong["path"].removeprefix("file:")).read_bytes().startswith(b"\xff\xd8")
    assert Path(wrong["picture"]).read_bytes().startswith(b"\xff\xd8")
    assert "source image: file:" in done.stdout
