"""What can be found wrong without Spark is found before a JVM starts."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

from lakelens.etl.images.recipe import RECIPE_PROPERTY, Recipe
from lakelens.etl.model.classes import LABELS_PROPERTY
from lakelens.jobs.cli import main
from lakelens.training.checkpoints.checkpoint import write_checkpoint

pytestmark = pytest.mark.unit

EXPERIMENT = """
entrypoint: lakelens.training.trials.small_cnn:SmallCnn
data: {table: nosuch}
hyperparameters: {global_batch_size: 26, rate: {type: double, minval: 0, maxval: 1}}
searcher: {name: random, max_trials: 2, max_length: {epochs: 1}}
resources: {strategy: horovod_cluster, slots_per_trial: 2}
"""

GRID = """
entrypoint: lakelens.training.trials.small_cnn:SmallCnn
data: {table: table, validation_split: null, image_size: 8}
hyperparameters: {global_batch_size: 2, rate: {type: double, minval: 0, maxval: 1}}
searcher: {name: grid, metric: loss, max_length: {epochs: 1}}
resources: {strategy: horovod_cluster, slots_per_trial: 2}
"""
START = """
entrypoint: lakelens.training.trials.small_cnn:SmallCnn
data: {table: table, validation_split: null, image_size: 8}
hyperparameters: {global_batch_size: 2}
searcher: {metric: loss, max_length: {epochs: 1}}
resources: {strategy: horovod_cluster, slots_per_trial: 2}
warm_start: notes
"""
TRAIN = ["train", "table", "--strategy", "horovod_cluster", "--set", "data.validation_split=null", "--image-size", "8"]
CONTINUED = ["train", "start.yaml", "--set", "warm_start=null", "--set"]
PROPERTIES = {RECIPE_PROPERTY: Recipe(size=64).as_property(), LABELS_PROPERTY: '{"cat": 0}'}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images, tables and checkpoints."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "no java").mkdir()
    (folder / "photos" / "cat").mkdir(parents=True)
    (folder / "photos.csv").mkdir()
    (folder / "notes").mkdir()
    (folder / "notes" / "today.txt").write_text("")
    (folder / "search.yaml").write_text(EXPERIMENT)
    (folder / "start.yaml").write_text(START)
    (folder / "grid.yaml").write_text(GRID)
    rows = pa.table({"path": ["a"], "image": [b""], "label": [0], "split": ["train"]})
    write_deltalake(folder / "table", rows)
    # delta-rs writes no property and no feature that it does not know.
    change_log(folder / "table", "metaData", configuration=PROPERTIES)
    write_deltalake(folder / "parts", rows, partition_by=["split"])
    files = {name: lambda path: path.write_text("{}") for name in ("model.keras", "state.json")}
    metadata = {"input": {"height": 8, "width": 8, "channels": 3}}
    models = folder / "models"
    write_checkpoint(models, files=files, metadata=metadata, name="m").path.rename(folder / "model")
    trained = metadata | {"run_id": "abc"}
    write_checkpoint(models, files=files, metadata=trained, name="t").path.rename(folder / "trained")
    write_deltalake(folder / "widened", rows)
    features = {"readerFeatures": ["variantType"], "writerFeatures": ["variantType"]}
    change_log(folder / "widened", "protocol", minReaderVersion=3, minWriterVersion=7, **features)
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folder, on a machine where no JVM can start."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no java"))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def change_log(table: Path, action: str, **changes: Any) -> None:
    log = table / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for one in actions:
        one.get(action, {}).update(changes)
    log.write_text("\n".join(json.dumps(one) for one in actions))


def said(argv: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    code = main(argv)
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert code == (1 if found["error"] == "TrackingError" else 2)
    return found


@pytest.mark.parametrize(
    ("argv", "error", "words"),
    [
        (["etl", "nosuch", "t"], "SourceNotFoundError", "nosuch does not exist"),
        (["etl", "nosuch", "t", "--stream"], "SourceNotFoundError", "nosuch does not exist"),
        (["etl", "notes", "t"], "EmptySourceError", "no class folder"),
        (["etl", "nosuch.csv", "t", "--layout", "manifest"], "SourceNotFoundError", "nosuch.csv does not exist"),
        (
            ["etl", "photos", "t", "--layout", "coco", "--annotations", "x.json"],
            "SourceNotFoundError",
            "x.json does not",
        ),
        (
            ["etl", "photos", "t", "--layout", "manifest"],
            "InvalidArgumentError",
            "the suffix of a manifest",
        ),
        (["etl", "photos.csv", "t", "--layout", "manifest"], "SourceNotFoundError", "photos.csv is a folder"),
        (["etl", "photos", "t", "--class", "cta"], "InvalidArgumentError", "did you mean 'cat'?"),
        (["etl", "photos", "table", "--class", "bird"], "InvalidArgumentError", "'bird' is a class neither of photos"),
        (["etl", "photos", "notes"], "NotADeltaTableError", "notes exists and is not a Delta table"),
        (["etl", "photos", "table", "--size", "32"], "InvalidArgumentError", "size = 32"),
        (["etl", "photos", "t", "--conf", "memory=1g"], "InvalidArgumentError", "'memory' is not a Spark setting"),
        (["etl", "photos", "t", "--stream", "--max-files", "0"], "InvalidArgumentError", "max_files=0"),
        (["score", "nosuch", "table", "p"], "ModelNotFoundError", "nosuch"),
        (["score", "runs:/abc", "table", "p"], "InvalidArgumentError", "there is no MLflow store at"),
        (["search", "report", "nosuch"], "InvalidArgumentError", "there is no MLflow store at"),
        (["search", "resume", "abc"], "InvalidArgumentError", "there is no MLflow store at"),
        (["search", "pause", "abc"], "InvalidArgumentError", "there is no MLflow store at"),
        (["train", "--resume", "abc"], "InvalidArgumentError", "there is no MLflow store at"),
        (["reproduce", "abc"], "InvalidArgumentError", "there is no MLflow store at"),
        (["score", "model", "table", "notes"], "NotADeltaTableError", "notes exists and is not a Delta table"),
        (["score", "model", "table", "parts"], "PredictionsSchemaError", "no column 'content_hash'"),
        (["score", "model", "parts", "p", "--split", "tset"], "InvalidArgumentError", "no such split; it has train"),
        (["score", "model", "table", "p", "--image-column", "file"], "NotAnImageTableError", "no column 'file'"),
        (["score", "model", "table", "p", "--label-column", "kind"], "NotAnImageTableError", "no column 'kind'"),
        (["score", "model", "table", "p", "--key", "etag"], "NotAnImageTableError", "no column 'etag'"),
        (["evaluate", "nosuch", "table"], "ModelNotFoundError", "nosuch"),
        (["evaluate", "model", "parts"], "InvalidArgumentError", "split='test'"),
        (["evaluate", "model", "table", "--slice", "camera"], "InvalidArgumentError", "slice 'camera'"),
        (["evaluate", "model", "table", "--key", "etag"], "NotAnImageTableError", "no column 'etag'"),
        (["evaluate", "model", "table", "--predictions", "notes"], "NotADeltaTableError", "notes exists"),
        (["evaluate", "model", "table", "--out", "search.yaml"], "InvalidArgumentError", "cannot be written"),
        (["models", "promote", "m", "n", "--by", "-1"], "InvalidArgumentError", "by=-1.0 (--by)"),
        (["models", "promote", "m", "n", "--by", "nan"], "InvalidArgumentError", "by=nan (--by)"),
        (
            ["models", "promote", "m", "n", "--max-errors", "2"],
            "InvalidArgumentError",
            "max_errors (--max-errors) = 2.0",
        ),
        (
            ["models", "stale", "n", "table", "--max-drift", "nan"],
            "InvalidArgumentError",
            "max_drift (--max-drift) = nan",
        ),
        (["table", "restore", "nosuch@1"], "NotADeltaTableError", "nosuch"),
        (["table", "restore", "table@9"], "VersionNotFoundError", "9"),
        (["table", "repair", "nosuch"], "NotADeltaTableError", "nosuch"),
        (["table", "optimize", "nosuch"], "NotADeltaTableError", "nosuch"),
        (["table", "delete", "nosuch", "width > 1"], "NotADeltaTableError", "nosuch"),
        (["table", "delete", "table", " "], "InvalidArgumentError", "give a SQL condition"),
        (["table", "rename-class", "nosuch", "a", "b"], "NotADeltaTableError", "nosuch"),
        (["table", "rename-class", "table", "cat", " "], "InvalidArgumentError", "new=' '"),
        (["train", "nosuch", "--strategy", "horovod_cluster"], "NotADeltaTableError", "nosuch"),
        (["train", "table@9", "--slots-per-trial", "0", "--strategy", "horovod_cluster"], "VersionNotFoundError", "9"),
        (["train", "table", "--strategy", "horovod_cluster", "--entrypoint", "nosuch:Trial"], "TrialError", "nosuch"),
        (
            ["train", "table", "--strategy", "horovod_cluster", "--image-size", "big"],
            "InvalidArgumentError",
            "--image-size big",
        ),
        (
            [*TRAIN, "--tracking-uri", "http://127.0.0.1:9"],
            "TrackingError",
            "127.0.0.1:9 did not let us",
        ),
        (["train", "start.yaml"], "ModelNotFoundError", "so it is not a checkpoint"),
        ([*CONTINUED, "continue_from=x"], "InvalidArgumentError", "there is no MLflow store at"),
        (["models", "promote", "trained", "n"], "InvalidArgumentError", "there is no MLflow store at"),
        (["models", "promote", "model", "n"], "ModelNotFoundError", "the run that trained it is unknown"),
        (["search", "run", "search.yaml"], "NotADeltaTableError", "nosuch"),
        (["search", "run", "grid.yaml"], "ConfigurationError", "hyperparameters.rate.count"),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, list) else None,
)
@pytest.mark.usefixtures("place")
def test_it_is_found_where_no_jvm_can_start(
    argv: list[str], error: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = said(argv, capsys)
    assert found["error"] == error, found
    assert words in found["message"]
    assert not Path("mlflow.db").exists()


@pytest.mark.parametrize(
    "argv",
    [
        ["train", "{}"],
        ["train", "start.yaml", "--set", "data.table={}", "--set", "warm_start=null"],
        ["search", "run", "search.yaml", "--set", "data.table={}"],
        ["score", "model", "{}", "p"],
        ["evaluate", "model", "{}"],
        ["models", "stale", "n", "{}", "--tracking-uri", "file:runs"],
        ["table", "counts", "{}"],
        ["table", "profile", "{}"],
        ["table", "pin", "{}", "golden"],
        ["table", "restore", "{}"],
        ["trace", "{}", "path"],
    ],
    ids=lambda argv: " ".join(argv[:2]),
)
@pytest.mark.usefixtures("place")
def test_the_version_stands_after_the_table_in_every_command_that_reads_one(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = said([word.format("nosuch@1") for word in argv], capsys)
    assert found["error"] == "NotADeltaTableError"
    assert "/nosuch holds no Delta table" in found["message"]
    found = said([word.format("table@7") for word in argv], capsys)
    assert (found["error"], "7" in found["message"]) == ("VersionNotFoundError", True), found


@pytest.mark.parametrize(
    "argv",
    [
        ["etl", "photos", "table@0"],
        ["init", "project", "--table", "table@0"],
        ["score", "model", "table", "p@0"],
        ["evaluate", "model", "table", "--split", "train", "--predictions", "p@0"],
        *[
            ["table", action, "table@0"]
            for action in ("history", "changes", "diff", "quarantine", "vacuum", "optimize")
        ],
    ],
    ids=lambda argv: " ".join(argv[:2]),
)
@pytest.mark.usefixtures("place")
def test_a_version_after_a_table_is_refused_where_none_can_be_chosen(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = said([*argv, "0"] if argv[1] in ("changes", "diff") else argv, capsys)
    assert (found["error"], "names version 0" in found["message"]) == ("InvalidArgumentError", True), found
    assert not Path("project").exists()


@pytest.mark.usefixtures("place")
def test_a_run_that_has_finished_is_not_resumed_and_no_jvm_starts_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    from lakelens.tracking.runs import open_client, resolve_tracking_uri

    client = open_client(resolve_tracking_uri("file:runs"))
    run = client.create_run(client.create_experiment("ended")).info.run_id
    client.log_text(run, json.dumps(yaml.safe_load(START)), "experiment.json")
    client.set_terminated(run, "FINISHED")
    for command in (["train", "--resume", run], ["search", "resume", run]):
        found = said([*command, "--tracking-uri", "file:runs"], capsys)
        assert found["error"] == "RunNotResumableError", found
        assert f"run {run} is FINISHED" in found["message"]
    for command in (
        *[["search", action] for action in ("report", "resume", "stop")],
        ["train", "--resume"],
        ["reproduce"],
        ["tensorboard"],
    ):
        found = said([*command, "nosuch", "--tracking-uri", "file:runs"], capsys)
        assert (found["error"], "no run 'nosuch'" in found["message"]) == ("ModelNotFoundError", True)
    found = said([*CONTINUED, "continue_from=nosuch", "--set", "tracking.uri=file:runs"], capsys)
    assert (found["error"], "no run 'nosuch'" in found["message"]) == ("ModelNotFoundError", True), found


@pytest.mark.usefixtures("place")
def test_what_is_right_comes_to_the_start_of_the_jvm() -> None:
    commands = [
        ["etl", "photos", "t", "--class", "cat"],
        ["etl", "hdfs://host/photos", "table", "--class", "bird"],
        ["etl", "notes", "t", "--stream"],
        ["table", "optimize", "table"],
        TRAIN,
    ]
    # A process of its own: where a session runs already, the commands use it.
    calls = f"import lakelens.jobs.cli as cli; print(*map(cli.main, {commands}))"
    done = subprocess.run([sys.executable, "-c", calls], capture_output=True, text=True, check=False)
    *answers, codes = done.stdout.splitlines()
    assert codes == "2 2 2 2 2", done.stderr
    for found in map(json.loads, answers):
        assert found["error"] == "MissingDependencyError", found
        assert "holds no Java that runs" in found["message"]
