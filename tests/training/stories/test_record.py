"""Rules of what a run leaves behind: a model that MLflow loads by itself, the code, the environment."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from coloured_tables import SIDE, coloured_table, written_again
from mlflow_stores import put_store

from lakelens.inference.scoring.score import score
from lakelens.jobs.cli import main
from lakelens.liveness import Process
from lakelens.tracking.heartbeat import HEARTBEAT_TAG, Heartbeat
from lakelens.tracking.run_listing import show_run
from lakelens.tracking.runs import DIGEST_TAG, TABLE_TAG, VERSION_TAG, open_client
from lakelens.training.checkpoints.references import resolve_model
from lakelens.training.experiment.train import train

# One of the tests needs a session, and all look at one training.
pytestmark = pytest.mark.xdist_group("spark")

TRIAL = """
    import keras
    from lakelens.training.trials.keras_trial import KerasTrial
    import heads

    class Tiny(KerasTrial):
        def build_model(self):
            model = keras.Sequential([
                keras.Input((*self.context.image_size, 3)),
                keras.layers.Rescaling(1 / 255),
                keras.layers.GlobalAveragePooling2D(),
                heads.head(self.context.num_classes),
            ])
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.Adam(0.1), loss, weighted_metrics=["accuracy"])
            return model
"""
LOADED = """
    import json, sys, numpy as np, mlflow, keras
    uri, checkpoint = sys.argv[1:]
    images = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 3)).astype("float32")
    plain = keras.saving.load_model(checkpoint, compile=False)
    wanted = keras.ops.convert_to_numpy(keras.ops.softmax(plain(images)))
    by_keras = mlflow.keras.load_model(uri)
    by_pyfunc = mlflow.pyfunc.load_model(uri)
    example = by_pyfunc.input_example
    print(json.dumps({
        "keras": bool(np.allclose(by_keras.predict(images, verbose=0), wanted, atol=1e-6)),
        "pyfunc": bool(np.allclose(by_pyfunc.predict(images), wanted, atol=1e-6)),
        "optimizer": getattr(by_keras, "optimizer", None) is not None,
        "signature": [str(by_pyfunc.metadata.signature.inputs), str(by_pyfunc.metadata.signature.outputs)],
        "example": [list(example.shape), list(by_pyfunc.predict(example.astype("float32")).shape)],
        "metadata": by_pyfunc.metadata.metadata,
        "lakelens": sorted(name for name in sys.modules if name.startswith("lakelens")),
    }))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A training whose entry point has modules beside it, in a git repository."""
    folder = tmp_path_factory.mktemp("record")
    work = folder / "work"
    (work / "parts").mkdir(parents=True)
    (work / "tiny.py").write_text(textwrap.dedent(TRIAL))
    (work / "heads.py").write_text(
        "from parts.sizes import units\nimport keras, mlflow\nhead = keras.layers.Dense\nmlflow.autolog()\n"
    )
    (work / "parts" / "__init__.py").touch()
    (work / "parts" / "sizes.py").write_text("def units(n):\n    return n\n")
    (work / "unrelated.py").touch()
    git = ["git", "-C", str(work), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)
    (work / "heads.py").open("a").write("# changed\n")
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    store = put_store(folder)
    result = train(
        {
            "entrypoint": f"{work}/tiny.py:Tiny",
            "data": {"table": str(coloured_table(folder / "squares"))},
            "hyperparameters": {"global_batch_size": 16},
            "searcher": {"max_length": {"epochs": 2}},
            "checkpoint_storage": {"path": str(folder / "checkpoints")},
            "resources": {"env": {"MLFLOW_TRACKING_URI": store}},
            "tracking": {"uri": store, "register_as": "squares"},
        }
    )
    client = open_client(store)
    runs = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    return SimpleNamespace(result=result, store=store, commit=commit, client=client, folder=folder, runs=runs)


@pytest.mark.tensorflow
def test_mlflow_loads_the_model_of_a_run_without_lakelens(run):
    environment = {**os.environ, "MLFLOW_TRACKING_URI": run.store, "PYTHONPATH": "", "CUDA_VISIBLE_DEVICES": ""}
    arguments = [f"runs:/{run.result.run_id}/model", f"{run.result.checkpoint}/model.keras"]
    command = [sys.executable, "-c", textwrap.dedent(LOADED), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd="/", check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["lakelens"] == []
    assert found["keras"]
    assert found["pyfunc"]
    assert not found["optimizer"]
    assert found["signature"] == [f"[Tensor('float32', (-1, {SIDE}, {SIDE}, 3))]", "[Array(float) (required)]"]
    assert found["example"] == [[1, SIDE, SIDE, 3], [1, 3]]
    assert found["metadata"]["lakelens.probabilities"] is True
    assert found["metadata"][DIGEST_TAG] == run.result.digest


@pytest.mark.tensorflow
def test_a_model_that_mlflow_has_registered_leads_to_the_checkpoint_and_gets_an_alias(run, monkeypatch):
    import mlflow

    from lakelens.inference.model.registry import set_alias

    monkeypatch.setenv("MLFLOW_TRACKING_URI", run.store)
    version = int(mlflow.register_model(f"runs:/{run.result.run_id}/model", "by mlflow").version)
    assert set_alias("by mlflow", version, "champion", run.store).aliases == ("champion",)
    for uri in (f"runs:/{run.result.run_id}/model", "models:/by mlflow@champion", f"models:/by mlflow/{version}"):
        found = resolve_model(uri, run.store)
        assert (found.digest, found.run_id) == (run.result.digest, run.result.run_id)


@pytest.mark.tensorflow
def test_a_training_is_one_run_which_holds_what_it_is_judged_by_and_how_busy_its_machine_was(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    place = Path(run.client.download_artifacts(run.result.run_id, "", str(run.folder)))
    header, *lines = (place / "validation" / "confusion.csv").read_text().splitlines()
    assert header == "true class,blue,green,red"
    assert [sum(map(int, line.split(",")[1:])) for line in lines] == [7, 7, 7]
    right = sum(int(line.split(",")[place]) for place, line in enumerate(lines, 1))
    assert right / 21 == pytest.approx(run.result.metrics["val_accuracy"])
    assert "green,1,7," in (place / "validation" / "per_class.csv").read_text()
    assert (place / "validation" / "confusion_matrix.png").read_bytes().startswith(b"\x89PNG")
    history = {point.step: point.value for point in run.client.get_metric_history(run.result.run_id, "val_loss")}
    events = EventAccumulator(str(place / "tensorboard" / "validation")).Reload()
    assert {each.step: each.value for each in events.Scalars("epoch_loss")} == pytest.approx(history)
    assert not list(Path(run.result.checkpoint).parent.glob("evaluation*"))
    (found,) = run.runs  # though the Trial's code switches MLflow's autologging on
    assert found.info.run_id == run.result.run_id
    assert found.data.metrics["images_per_second"] > 0
    assert 0 <= found.data.metrics["system/cpu_utilization_percentage"] <= 100
    assert found.data.metrics["system/system_memory_usage_megabytes"] > 100


@pytest.mark.tensorflow
def test_a_run_holds_its_code_and_its_environment(run):
    place = Path(run.client.download_artifacts(run.result.run_id, "", str(run.folder)))
    code = {path.relative_to(place / "code").as_posix() for path in (place / "code").rglob("*.py")}
    assert code == {"tiny.py", "heads.py", "parts/__init__.py", "parts/sizes.py"}
    assert "# changed" in (place / "code" / "heads.py").read_text()
    packages = (place / "environment" / "requirements.txt").read_text().splitlines()
    assert any(line.startswith("tensorflow==") for line in packages)
    tags = run.client.get_run(run.result.run_id).data.tags
    assert tags["mlflow.source.git.commit"] == run.commit
    assert tags["lakelens.git_dirty"] == "true"


def command(capsys, *arguments: str) -> tuple[int, list[str], dict[str, Any]]:
    code = main(list(arguments))
    lines = capsys.readouterr().out.splitlines()
    return code, lines[:-1], json.loads(lines[-1])


@pytest.mark.tensorflow
def test_runs_lists_them_marks_lost_ones_and_shows_one(run, capsys):
    experiment = run.client.get_experiment_by_name("lakelens").experiment_id
    gone = Heartbeat(Process("elsewhere", "", 1, 0.0), time.time() - 3600)
    tags = {TABLE_TAG: "/tables/a", VERSION_TAG: "3", HEARTBEAT_TAG: str(gone)}
    lost = run.client.create_run(experiment, tags=tags, start_time=int(gone.time * 1000) - 1000).info.run_id
    run.client.create_run(experiment)  # not of lakelens
    code, lines, found = command(capsys, "runs", "--tracking-uri", run.store)
    states = {entry["run_id"]: entry["state"] for entry in found["runs"]}
    assert (code, states) == (0, {run.result.run_id: "FINISHED", lost: "FAILED"})
    (listed,) = [entry for entry in found["runs"] if entry["run_id"] == run.result.run_id]
    assert (listed["version"], listed["metric"], listed["digest"]) == (0, "val_loss", run.result.digest)
    assert listed["value"] == run.result.metrics["val_loss"]
    (line,) = (line for line in lines if line.startswith(run.result.run_id))
    assert "squares@0" in line
    assert "tiny.py:Tiny" in line
    assert f"  {listed['started'][:16].replace('T', ' ')}Z  " in line
    assert any("no sign of life" in line for line in lines)
    code, lines, found = command(capsys, "runs", "show", run.result.run_id, "--tracking-uri", run.store)
    assert code == 0
    assert found["rows"] == {"train": 90, "validation": 21}
    assert found["params"]["global_batch_size"] == "16"
    assert any(line.split() == ["global_batch_size", "16"] for line in lines)


@pytest.mark.tensorflow
def test_the_code_of_a_run_is_restored_into_a_new_folder(run, tmp_path, capsys):
    words = ["runs", "code", run.result.run_id, str(tmp_path / "restored"), "--tracking-uri", run.store]
    code, lines, found = command(capsys, *words)
    assert (code, lines) == (0, found["files"])
    restored = {Path(file).relative_to(tmp_path / "restored").as_posix(): Path(file) for file in found["files"]}
    assert {"tiny.py", "parts/sizes.py"} <= set(restored)
    assert restored["parts/sizes.py"].read_text() == "def units(n):\n    return n\n"
    code, _, found = command(capsys, *words)
    assert (code, "exists" in found["message"]) == (2, True)


@pytest.mark.tensorflow
def test_tensorboard_opens_on_the_metrics_of_a_run(run):
    words = [run.result.run_id, "--tracking-uri", run.store, "--port", "0"]
    started = [sys.executable, "-m", "lakelens.jobs.cli", "tensorboard", *words]
    with subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        url = next(found[0] for line in process.stdout if (found := re.search(r"http://\S+/", line)))
        with urllib.request.urlopen(f"{url}data/runs", timeout=60) as answer:  # noqa: S310
            shown = json.load(answer)
        process.send_signal(signal.SIGINT)
        said = process.stdout.read()
    name = f"{show_run(run.result.run_id, run.store).summary.name} {run.result.run_id[:8]}"
    assert sorted(shown) == [f"{name}/train", f"{name}/validation"]
    assert (process.returncode, json.loads(said.splitlines()[-1])["runs"]) == (130, [run.result.run_id])


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["runs", "show", "nothing"], "no run 'nothing'"),
        (["runs", "--experiment", "other"], "no experiment 'other'; it has"),
        (["runs", "--limit", "0"], "limit is 0"),
        (["trace"], "give a predictions table and a path, or --run RUN"),
        (["trace", "/some/table"], "give the path of an image too"),
        (["trace", "/some/table", "/a.jpg"], "/some/table"),
        (["trace", "--run", "nothing"], "no run 'nothing'"),
    ],
)
def test_what_cannot_be_found_is_named(run, capsys, arguments, words):
    code, _, found = command(capsys, *arguments, "--tracking-uri", run.store)
    assert code == 2
    assert words in found["message"]


@pytest.mark.spark
def test_a_prediction_is_traced_to_its_origins_and_a_run_to_what_it_has_scored(run, spark, capsys):
    predictions = str(run.folder / "predictions")
    uri = f"runs:/{run.result.run_id}/model"
    scored = score(spark, uri, run.result.table, predictions, 0, split="validation", tracking_uri=run.store)
    path = "file:/squares/10000.jpg"
    code, _, found = command(capsys, "trace", predictions, path, "--tracking-uri", run.store)
    (trace,) = found["traces"]
    assert (code, trace["missing"]) == (0, [])
    assert trace["model"]["digest"] == trace["run"]["digest"] == run.result.digest
    assert trace["run"]["run_id"] == run.result.run_id
    assert trace["code"]["git_commit"] == run.commit
    assert trace["trained_on"]["table"] == f"{run.result.table}@0"
    assert (trace["source_image"]["path"], trace["source_image"]["label_name"]) == (path, "green")
    with written_again(Path(run.result.table)):
        (trace,) = command(capsys, "trace", predictions, path, "--tracking-uri", run.store)[2]["traces"]
    assert trace["source_image"] == {}
    assert [text.partition(";")[0] for text in trace["missing"]] == [
        f"source image: {run.result.table}@0 is not the table that was scored"
    ]
    arguments = ["--run", run.result.run_id, "--in", predictions, "--tracking-uri", run.store]
    code, _, found = command(capsys, "trace", *arguments)
    (recorded,), (seen,) = found["scored"], found["found"]
    assert recorded["predictions"] == predictions
    assert (recorded["version"], recorded["table_version"]) == (scored.version, 0)
    assert (seen["rows"], seen["table_version"]) == (21, 0)
