"""Packages that a call needs: those that are there have to be new enough."""

from __future__ import annotations

import pytest
from borrowed import put_metadata
from setup_arguments import setup_arguments

import lakelens
from lakelens.errors import MissingDependencyError
from lakelens.extras import OLDEST, require

pytestmark = pytest.mark.unit


def test_a_training_with_packages_that_are_too_old_is_refused_before_anything_is_read(tmp_path, monkeypatch):
    put_metadata(tmp_path / "old", "mlflow", "2.13.1")
    put_metadata(tmp_path / "old", "keras", "3.1.1")
    monkeypatch.syspath_prepend(str(tmp_path / "old"))
    with pytest.raises(MissingDependencyError) as caught:
        lakelens.train(tmp_path / "no table")
    assert str(caught.value).startswith(
        "a training needs MLflow 3.11 or newer (2.13.1 is installed) and Keras 3.11.3 or newer (3.1.1 is installed): "
        "pip install 'mlflow>=3.11' 'keras>=3.11.3'"
    )
    put_metadata(tmp_path / "new enough", "mlflow", "3.11")
    monkeypatch.syspath_prepend(str(tmp_path / "new enough"))
    require("a training", "mlflow")


def test_setup_asks_for_the_oldest_versions_that_a_call_accepts_and_for_tensorboard():
    extras = setup_arguments()["extras_require"]
    for name in ("training", "training-cpu"):  # TensorFlow no longer brings it
        assert any(one.startswith("tensorboard>=") for one in extras[name]), name
    for module, version in OLDEST.items():
        for name in ("training", "training-cpu", "databricks"):
            assert any(one.split(",")[0] == f"{module}>={version}" for one in extras[name]), f"{module} in {name}"
