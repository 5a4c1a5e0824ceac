"""Rules of recorded PyTorch models: one training as one MLflow run, and predictions from its recorded code."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coloured_tables import CLASSES, coloured_table, square

import lakelens
from lakelens.errors import CheckpointError, ModelMismatchError

pytestmark = pytest.mark.torch

TRIAL = """
    import lakelens
    import torch
    from parts import Scaled
    from torch import nn

    class Net(lakelens.TorchTrial):
        def build_model(self):
            width = self.context.get_hparam("width", 4)
            return nn.Sequential(
                Scaled(), nn.Conv2d(3, width, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                nn.Linear(width, self.context.num_classes),
            )

        def build_optimizer(self, model):
            return torch.optim.Adam(model.parameters(), 0.05)

        def training_step(self, model, batch):
            images, labels = batch
            return nn.functional.cross_entropy(model(images), labels)

        def build_metrics(self):
            from torchmetrics.classification import MulticlassF1Score
            return {"f1": MulticlassF1Score(self.context.num_classes)}
"""
PARTS = """
    from torch import nn

    class Scaled(nn.Module):
        def forward(self, images):
            return images.float() / 255
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Any:
    """A finished run, whose code and table are then moved away."""
    folder = tmp_path_factory.mktemp("scored")
    coloured_table(folder / "squares")
    for name, text in {"net.py": TRIAL, "parts.py": PARTS}.items():
        (folder / name).write_text(textwrap.dedent(text))
    uri = f"sqlite:///{folder}/mlflow.db"
    result = lakelens.train(
        folder / "squares",
        entrypoint=f"{folder}/net.py:Net",
        epochs=4,
        global_batch_size=16,
        hyperparameters={"width": 6},
        tracking_uri=uri,
        config={"checkpoint_storage": {"path": str(folder / "checkpoints")}},
    )
    for name in ("net.py", "parts.py"):
        (folder / name).unlink()
    return result, uri, folder


def test_a_training_is_one_run_with_metrics_code_and_a_model(trained):
    from mlflow import MlflowClient

    result, uri, _ = trained
    run = MlflowClient(uri).get_run(result.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["hyperparameters.width"] == "6"
    assert {"val_loss", "val_accuracy", "val_f1", "loss"} <= run.data.metrics.keys()
    assert result.metrics["val_accuracy"] == 1.0
    assert result.metrics["val_f1"] == pytest.approx(1.0)
    names = {file.path for file in MlflowClient(uri).list_artifacts(result.run_id, "validation")}
    assert "validation/per_class.csv" in names


def test_a_model_is_built_from_the_code_recorded_with_its_run(trained):
    from lakelens.inference.model.predictor import build_predictor
    from lakelens.inference.model.user_code import user_code
    from lakelens.training.checkpoints.references import resolve_model

    result, uri, _ = trained
    reference = resolve_model(f"runs:/{result.run_id}", uri)
    predictor = build_predictor(reference.checkpoint, 1 << 20, 1, user_code(reference))
    images = [square(CLASSES[number % 3], 20_000 + number) for number in range(9)]
    found = predictor.predict([*images, b"no image"])
    answers = found.answers
    assert answers[:9].argmax(axis=1).tolist() == [number % 3 for number in range(9)]
    np.testing.assert_allclose(answers[:9].sum(axis=1), 1.0, rtol=1e-5)
    assert found.errors[:9] == [None] * 9
    assert found.errors[9] is not None


def test_mlflow_loads_the_model_without_the_entry_point_and_without_a_pickle(trained):
    import mlflow

    result, uri, _ = trained
    mlflow.set_tracking_uri(uri)
    (model,) = mlflow.search_logged_models(
        experiment_ids=[result.experiment_id], output_format="list", filter_string=f"source_run_id='{result.run_id}'"
    )
    loaded = mlflow.pyfunc.load_model(model.model_uri)
    images = np.zeros((3, 16, 16, 3), np.uint8)
    images[0, :, :, 0] = images[1, :, :, 1] = images[2, :, :, 2] = 220
    predicted = loaded.predict(images)
    assert [CLASSES[number] for number in predicted.argmax(axis=1)] == ["red", "green", "blue"]
    folder = Path(mlflow.artifacts.download_artifacts(model.model_uri))
    assert not [path for path in folder.rglob("*") if path.suffix in (".pkl", ".pt", ".pth", ".pickle")]


def test_a_checkpoint_by_path_needs_its_trial(trained):
    from lakelens.inference.model.user_code import user_code
    from lakelens.training.checkpoints.references import resolve_model

    result, _, _ = trained
    with pytest.raises(ModelMismatchError, match=r"custom_objects=.*net.py:Net"):
        user_code(resolve_model(result.checkpoint))


def test_a_trial_that_builds_another_model_is_refused(trained):
    import torch

    from lakelens.inference.model.compiled import compile_model
    from lakelens.training.checkpoints.checkpoint import open_checkpoint

    class Net(lakelens.TorchTrial):
        def build_model(self):
            return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8, 3))

        def build_optimizer(self, model):
            raise AssertionError

        def training_step(self, model, batch):
            raise AssertionError

    with pytest.raises(CheckpointError, match="is of another model than the Trial builds now"):
        compile_model(open_checkpoint(trained[0].checkpoint), {"Net": Net})


def test_a_run_is_reproduced_to_the_bit(tmp_path):
    table = coloured_table(tmp_path / "squares")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    keys = {
        "checkpoint_storage": {"path": str(tmp_path / "checkpoints")},
        "reproducibility": {"deterministic": True},
    }
    entry = "lakelens.training.trials.torch_small_cnn:TorchSmallCnn"
    result = lakelens.train(table, entrypoint=entry, epochs=2, global_batch_size=16, tracking_uri=uri, config=keys)
    from lakelens.training.experiment.reproduce import reproduce

    assert reproduce(result.run_id, tracking_uri=uri).differences == []


@pytest.mark.timeout(900)
def test_spark_scores_and_evaluates_a_version(trained, tmp_path):
    result, uri, folder = trained
    spark = lakelens.spark_session("local[2]", **{"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"})
    try:
        scored = lakelens.score(
            spark, f"runs:/{result.run_id}", folder / "squares", tmp_path / "predictions", tracking_uri=uri
        )
        rows = spark.read.format("delta").load(str(tmp_path / "predictions"))
        assert scored.scored == rows.count() == 111
        assert rows.where("error is not null").count() == 0
        udf = lakelens.predict_udf(spark, f"runs:/{result.run_id}", tracking_uri=uri)
        images = spark.read.format("delta").load(str(folder / "squares"))
        wrong = images.select("label", udf("image").alias("found")).where("label != found.prediction")
        assert wrong.count() == 0
        evaluated = lakelens.evaluate(
            spark,
            f"runs:/{result.run_id}",
            folder / "squares",
            split="validation",
            tracking_uri=uri,
            output=tmp_path / "page",
        )
        assert evaluated.evaluation.scores["accuracy"] == 1.0
    finally:
        spark.stop()
