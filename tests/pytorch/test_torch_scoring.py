"""Rules of recorded PyTorch models: one training as one MLflow run, and predictions from its recorded code."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from boxed_tables import boxed_table, scene
from coloured_tables import CLASSES, coloured_table
from mlflow import MlflowClient
from mlflow_stores import put_store

import lakelens
from lakelens.errors import CheckpointError, ModelMismatchError
from lakelens.inference.promotion import promote
from lakelens.training.experiment.config_record import read_config

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
    uri = put_store(folder)
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
    result, uri, _ = trained
    run = MlflowClient(uri).get_run(result.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["hyperparameters.width"] == "6"
    assert {"val_loss", "val_accuracy", "val_f1", "loss"} <= run.data.metrics.keys()
    assert result.metrics["val_accuracy"] == 1.0
    assert result.metrics["val_f1"] == pytest.approx(1.0)
    names = {file.path for file in MlflowClient(uri).list_artifacts(result.run_id, "validation")}
    assert "validation/per_class.csv" in names


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
    from lakelens.training.trials.torch_small_cnn import TorchSmallCnn

    class Net(TorchSmallCnn):
        def build_model(self):
            return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8, 3))

    with pytest.raises(CheckpointError, match="is of another model than the Trial builds now"):
        compile_model(open_checkpoint(trained[0].checkpoint), {"Net": Net})


@pytest.mark.timeout(900)
def test_spark_trains_scores_promotes_and_traces(trained, tmp_path):
    result, uri, folder = trained
    squares, model = folder / "squares", f"runs:/{result.run_id}"
    spark = lakelens.spark_session("local[2]", conf={"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"})
    try:
        scored = lakelens.score(spark, model, squares, tmp_path / "predictions", tracking_uri=uri)
        rows = spark.read.format("delta").load(str(tmp_path / "predictions"))
        assert scored.scored == rows.count() == 111
        assert rows.where("error is not null").count() == 0
        udf = lakelens.predict_udf(spark, model, tracking_uri=uri)
        images = spark.read.format("delta").load(str(squares))
        wrong = images.select("label", udf("image").alias("found")).where("label != found.prediction")
        assert wrong.count() == 0
        kept = {"split": "validation", "tracking_uri": uri}
        promoted = promote(model, "squares", spark=spark, if_better="accuracy", on=squares, **kept)
        assert (promoted.promoted, promoted.score, promoted.errors) == (True, 1.0, 0.0)
        (trace,) = lakelens.trace(tmp_path / "predictions", "file:/squares/0.jpg", tracking_uri=uri)
        assert (trace.run.summary.run_id, trace.registered, trace.missing) == (result.run_id, ["models:/squares/1"], [])
        assert trace.code["entrypoint"].endswith("net.py:Net")
        cluster = lakelens.train(
            squares,
            entrypoint="lakelens.training.trials.torch_small_cnn:TorchSmallCnn",
            epochs=1,
            slots_per_trial=2,
            strategy="horovod_cluster",
            spark=spark,
            tracking_uri=uri,
            config={"checkpoint_storage": {"path": str(folder / "checkpoints")}},
        )
        assert read_config(uri, cluster.run_id).resources.strategy == "horovod_cluster"
    finally:
        spark.stop()


BOXES = """
    import lakelens
    import torch
    from torch import nn


    class Boxes(lakelens.TorchTrial):
        '''One candidate in each cell of 8 pixels.'''

        def build_model(self):
            return Grid(self.context.num_classes)

        def build_optimizer(self, model):
            return torch.optim.AdamW(model.parameters(), 0.01)

        def training_step(self, model, batch):
            images, boxes = batch
            found = model(images)
            real = boxes[..., 4] >= 0
            middle = ((found[..., :2] + found[..., 2:4]) / 2)[:, None]
            inside = ((middle > boxes[:, :, None, :2]) & (middle < boxes[:, :, None, 2:4])).all(-1) & real[..., None]
            wanted = torch.zeros_like(found[..., 4:])
            rows, number, cell = inside.nonzero(as_tuple=True)
            labels = boxes[rows, number, 4].long()
            wanted[rows, cell, labels] = 1
            score = nn.functional.binary_cross_entropy_with_logits(found[..., 4:], wanted)
            if not len(rows):
                return score
            return score + nn.functional.l1_loss(found[rows, cell, :4], boxes[rows, number, :4]) / 8


    class Grid(nn.Module):
        def __init__(self, classes):
            super().__init__()
            self.layers = nn.Sequential(
                nn.Conv2d(3, 16, 5, 2, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
                nn.Conv2d(32, 32, 3, 2, 1), nn.ReLU(),
                nn.Conv2d(32, 32, 3, 1, 1), nn.ReLU(),
                nn.Conv2d(32, 4 + classes, 1),
            )

        def forward(self, images):
            found = self.layers(images.float() / 255)
            height, width = found.shape[2:]
            y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
            middle = torch.stack([x, y], 2).to(found).reshape(-1, 2) * 8 + 4
            found = found.flatten(2).transpose(1, 2)
            sides = found[..., :4].exp() * 10
            corners = torch.cat([middle - sides[..., :2], middle + sides[..., 2:]], 2)
            return torch.cat([corners, found[..., 4:]], 2)
"""


def test_a_detector_learns_from_boxes_and_predicts_them(tmp_path):
    from lakelens.inference.model.predictor import build_predictor
    from lakelens.inference.model.user_code import user_code
    from lakelens.training.checkpoints.references import resolve_model

    boxed_table(tmp_path / "scenes")
    (tmp_path / "boxes.py").write_text(textwrap.dedent(BOXES))
    uri = put_store(tmp_path)
    result = lakelens.train(
        tmp_path / "scenes",
        entrypoint=f"{tmp_path}/boxes.py:Boxes",
        epochs=5,
        global_batch_size=8,
        tracking_uri=uri,
        config={
            "task": "detection",
            "searcher": {"metric": "val_map50"},
            "checkpoint_storage": {"path": str(tmp_path / "checkpoints")},
        },
    )
    assert result.metrics["val_map50"] > 0.2
    reference = resolve_model(f"runs:/{result.run_id}", uri)
    images, boxes = zip(*(scene(20_001 + 2 * number) for number in range(4)), strict=True)
    found = build_predictor(reference.checkpoint, 1 << 20, 1, user_code(reference)).predict(images)
    assert found.errors == [None] * 4
    assert found.answers.shape == (4, 100, 6)
    for (left, top, right, bottom), truths in zip(found.answers[:, 0, :4], boxes, strict=True):
        x, y = (left + right) / 2, (top + bottom) / 2
        assert any(box["xmin"] < x < box["xmax"] and box["ymin"] < y < box["ymax"] for box in truths)
