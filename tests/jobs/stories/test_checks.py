"""What can be found wrong without Spark is found before a JVM starts."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from child_processes import run_to_end
from deltalake import write_deltalake
from version_tables import change_log

from lakelens.etl.images.recipe import RECIPE_PROPERTY, Recipe
from lakelens.etl.model.classes import LABELS_PROPERTY
from lakelens.jobs.cli import main
from lakelens.training.checkpoints.checkpoint import write_checkpoint

pytestmark = pytest.mark.unit

EXPERIMENT = """
entrypoint: lakelens.training.trials.small_cnn:SmallCnn
data: {table: nosuch}
hyperparameters: {global_batch_size: 2, rate: {type: double, minval: 0, maxval: 1}}
searcher: {name: random, max_trials: 2, max_length: {epochs: 1}}
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
TABLE = "data={table: table, validation_split: null, image_size: 8}"
GRID = "searcher={name: grid, metric: loss, max_length: {epochs: 1}}"
TRAIN = "train table --strategy horovod_cluster --set data.validation_split=null --image-size 8"
CONTINUED = "train start.yaml --set warm_start=null --set"
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
    rows = pa.table({"path": ["a"], "image": [b""], "label": [0], "split": ["train"]})
    write_deltalake(folder / "table", rows)
    # delta-rs writes no property that it does not know.
    change_log(folder / "table", 0, "metaData", configuration=PROPERTIES)
    write_deltalake(folder / "parts", rows, partition_by=["split"])
    files = {name: lambda path: path.write_text("{}") for name in ("model.keras", "state.json")}
    metadata = {"input": {"height": 8, "width": 8, "channels": 3}}
    models = folder / "models"
    write_checkpoint(models, files=files, metadata=metadata, name="m").path.rename(folder / "model")
    trained = metadata | {"run_id": "abc"}
    write_checkpoint(models, files=files, metadata=trained, name="t").path.rename(folder / "trained")
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


def said(command: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    code = main(shlex.split(command))
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert code == (1 if found["error"] == "TrackingError" else 2)
    return found


NO_TABLE = ["table restore nosuch@1", "table repair nosuch", "table optimize nosuch", "table delete nosuch 'width > 1'"]
NO_TABLE += ["table rename-class nosuch a b", "train nosuch --strategy horovod_cluster", "search run search.yaml"]
NO_STORE = ["score runs:/abc table p", "search report nosuch", "search resume abc", "search pause abc", "reproduce abc"]
NO_STORE += ["train --resume abc", f"{CONTINUED} continue_from=x", "models promote trained n"]


@pytest.mark.parametrize(
    ("command", "error", "words"),
    [
        *[(command, "NotADeltaTableError", "nosuch") for command in NO_TABLE],
        *[(command, "InvalidArgumentError", "there is no MLflow store at") for command in NO_STORE],
        ("etl nosuch t", "SourceNotFoundError", "nosuch does not exist"),
        ("etl nosuch t --stream", "SourceNotFoundError", "nosuch does not exist"),
        ("etl notes t", "EmptySourceError", "no class folder"),
        ("etl nosuch.csv t --layout manifest", "SourceNotFoundError", "nosuch.csv does not exist"),
        ("etl photos t --layout coco --annotations x.json", "SourceNotFoundError", "x.json does not"),
        ("etl photos t --layout manifest", "InvalidArgumentError", "the suffix of a manifest"),
        ("etl photos.csv t --layout manifest", "SourceNotFoundError", "photos.csv is a folder"),
        ("etl photos t --class cta", "InvalidArgumentError", "did you mean 'cat'?"),
        ("etl photos table --class bird", "InvalidArgumentError", "'bird' is a class neither of photos"),
        ("etl photos notes", "NotADeltaTableError", "notes exists and is not a Delta table"),
        ("etl photos table --size 32", "InvalidArgumentError", "size = 32"),
        ("etl photos t --conf memory=1g", "InvalidArgumentError", "'memory' is not a Spark setting"),
        ("etl photos t --stream --max-files 0", "InvalidArgumentError", "max_files=0"),
        ("score nosuch table p", "ModelNotFoundError", "nosuch"),
        ("score model table notes", "NotADeltaTableError", "notes exists and is not a Delta table"),
        ("score model table parts", "PredictionsSchemaError", "no column 'content_hash'"),
        ("score model parts p --split tset", "InvalidArgumentError", "no such split; it has train"),
        ("score model table p --image-column file", "NotAnImageTableError", "no column 'file'"),
        ("score model table p --label-column kind", "NotAnImageTableError", "no column 'kind'"),
        ("score model table p --key etag", "NotAnImageTableError", "no column 'etag'"),
        ("evaluate nosuch table", "ModelNotFoundError", "nosuch"),
        ("evaluate model parts", "InvalidArgumentError", "split='test'"),
        ("evaluate model table --slice camera", "InvalidArgumentError", "slice 'camera'"),
        ("evaluate model table --key etag", "NotAnImageTableError", "no column 'etag'"),
        ("evaluate model table --predictions notes", "NotADeltaTableError", "notes exists"),
        ("evaluate model table --out search.yaml", "InvalidArgumentError", "cannot be written"),
        ("models promote m n --by -1", "InvalidArgumentError", "by=-1.0 (--by)"),
        ("models promote m n --by nan", "InvalidArgumentError", "by=nan (--by)"),
        ("models promote m n --max-errors 2", "InvalidArgumentError", "max_errors (--max-errors) = 2.0"),
        ("models stale n table --max-drift nan", "InvalidArgumentError", "max_drift (--max-drift) = nan"),
        ("models promote model n", "ModelNotFoundError", "the run that trained it is unknown"),
        ("table restore table@9", "VersionNotFoundError", "9"),
        ("table delete table ' '", "InvalidArgumentError", "give a SQL condition"),
        ("table rename-class table cat ' '", "InvalidArgumentError", "new=' '"),
        ("train table@9 --slots-per-trial 0 --strategy horovod_cluster", "VersionNotFoundError", "9"),
        ("train table --strategy horovod_cluster --entrypoint nosuch:Trial", "TrialError", "nosuch"),
        ("train table --strategy horovod_cluster --image-size big", "InvalidArgumentError", "--image-size big"),
        (f"{TRAIN} --tracking-uri http://127.0.0.1:9", "TrackingError", "127.0.0.1:9 did not let us"),
        ("train start.yaml", "ModelNotFoundError", "so it is not a checkpoint"),
        (f"search run search.yaml --set '{TABLE}' --set '{GRID}'", "ConfigurationError", "rate.count"),
    ],
)
@pytest.mark.usefixtures("place")
def test_it_is_found_where_no_jvm_can_start(command, error, words, capsys):
    found = said(command, capsys)
    assert found["error"] == error, found
    assert words in found["message"]
    assert not Path("mlflow.db").exists()


@pytest.mark.parametrize(
    "command",
    [
        "train {}",
        "train start.yaml --set data.table={} --set warm_start=null",
        "search run search.yaml --set data.table={}",
        "score model {} p",
        "evaluate model {}",
        "models stale n {} --tracking-uri file:runs",
        "table counts {}",
        "table profile {}",
        "table pin {} golden",
        "table restore {}",
        "trace {} path",
    ],
)
@pytest.mark.usefixtures("place")
def test_the_version_stands_after_the_table_in_every_command_that_reads_one(command, capsys):
    found = said(command.format("nosuch@1"), capsys)
    assert found["error"] == "NotADeltaTableError"
    assert "/nosuch holds no Delta table" in found["message"]
    found = said(command.format("table@7"), capsys)
    assert (found["error"], "7" in found["message"]) == ("VersionNotFoundError", True), found


@pytest.mark.parametrize(
    "command",
    [
        "etl photos table@0",
        "init project --table table@0",
        "score model table p@0",
        "evaluate model table --split train --predictions p@0",
        *[f"table {action} table@0" for action in ("history", "quarantine", "vacuum", "optimize")],
        *[f"table {action} table@0 0" for action in ("changes", "diff")],
    ],
)
@pytest.mark.usefixtures("place")
def test_a_version_after_a_table_is_refused_where_none_can_be_chosen(command, capsys):
    found = said(command, capsys)
    assert (found["error"], "names version 0" in found["message"]) == ("InvalidArgumentError", True), found
    assert not Path("project").exists()


@pytest.mark.usefixtures("place")
def test_a_run_that_has_finished_is_not_resumed_and_no_jvm_starts_for_it(capsys):
    from lakelens.tracking.runs import open_client, resolve_tracking_uri

    client = open_client(resolve_tracking_uri("file:runs"))
    run = client.create_run(client.create_experiment("ended")).info.run_id
    client.log_text(run, json.dumps(yaml.safe_load(START)), "experiment.json")
    client.set_terminated(run, "FINISHED")
    for command in (f"train --resume {run}", f"search resume {run}"):
        found = said(f"{command} --tracking-uri file:runs", capsys)
        assert found["error"] == "RunNotResumableError", found
        assert f"run {run} is FINISHED" in found["message"]
    commands = ["search report", "search resume", "search stop", "train --resume", "reproduce", "tensorboard"]
    commands = [f"{command} nosuch --tracking-uri file:runs" for command in commands]
    for command in (*commands, f"{CONTINUED} continue_from=nosuch --set tracking.uri=file:runs"):
        found = said(command, capsys)
        assert (found["error"], "no run 'nosuch'" in found["message"]) == ("ModelNotFoundError", True), found


@pytest.mark.usefixtures("place")
def test_what_is_right_comes_to_the_start_of_the_jvm():
    commands = ["etl photos t --class cat", "etl hdfs://host/photos table --class bird", "etl notes t --stream"]
    commands += ["table optimize table", TRAIN]
    # A process of its own: where a session runs already, the commands use it.
    calls = f"import lakelens.jobs.cli as cli; print(*(cli.main(command.split()) for command in {commands}))"
    done = run_to_end([sys.executable, "-c", calls])
    *answers, codes = done.stdout.splitlines()
    assert codes == "2 2 2 2 2", done.stderr
    for found in map(json.loads, answers):
        assert found["error"] == "MissingDependencyError", found
        assert "holds no Java that runs" in found["message"]
