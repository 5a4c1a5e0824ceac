"""Packages that a call needs: those that are there have to be new enough."""

from __future__ import annotations

from pathlib import Path

import pytest
from setup_arguments import setup_arguments

import lakelens
from lakelens.errors import MissingDependencyError
from lakelens.extras import OLDEST, require

pytestmark = pytest.mark.unit


def install(package: str, version: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a package's metadata before those of the environment, as an older installation would lie there."""
    metadata = folder / f"{package.replace('-', '_')}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))


def test_a_training_with_packages_that_are_too_old_is_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("mlflow", "2.13.1", tmp_path, monkeypatch)
    install("keras", "3.1.1", tmp_path, monkeypatch)
    with pytest.raises(MissingDependencyError) as caught:
        lakelens.train(tmp_path / "no table")
    assert str(caught.value).startswith(
        "a training needs MLflow 3.11 or newer (2.13.1 is installed) and Keras 3.11.3 or newer (3.1.1 is installed): "
        "pip install 'mlflow>=3.11' 'keras>=3.11.3'"
    )


def test_a_version_that_is_new_enough_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install("mlflow", "3.11", tmp_path, monkeypatch)
    require("a training", "mlflow")


def test_trainings_ask_for_tensorboard_which_tensorflow_no_longer_brings() -> None:
    extras = setup_arguments()["extras_require"]
    for name in ("training", "training-cpu"):
        assert any(one.startswith("tensorboard>=") for one in extras[name]), name


def test_setup_asks_for_the_oldest_versions_that_a_call_accepts() -> None:
    extras = setup_arguments()["extras_require"]
    for module, version in OLDEST.items():
        for name in ("training", "training-cpu", "databricks"):
            assert any(one.split(",")[0] == f"{module}>={version}" for one in extras[name]), f"{module} in {name}"
