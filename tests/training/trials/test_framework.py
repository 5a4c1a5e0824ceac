"""The framework of a Trial is found in its source, before anything of the user's is imported."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from lakelens.training.trials.entrypoint import EntryPoint
from lakelens.training.trials.framework import framework_of

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("source", "framework"),
    [
        ("import lakelens\nclass T(lakelens.TorchTrial): pass", "torch"),
        ("from lakelens import TorchTrial as Base\nclass T(Base): pass", "torch"),
        ("import lakelens as ll\nclass A(ll.TorchTrial): pass\nclass T(A): pass", "torch"),
        ("import lakelens\nclass T(lakelens.KerasTrial): pass\nclass U(lakelens.TorchTrial): pass", "keras"),
        ("from bases import Mine\nclass T(Mine): pass", "torch"),
        ("import package.bases\nclass T(package.bases.Mine): pass", "torch"),
        ("from .bases import Mine\nclass T(Mine): pass", "torch"),
        ("from package.inner.bases import Mine\nclass T(Mine): pass", "torch"),
        (
            "from lakelens.training.trials.torch_small_cnn import TorchSmallCnn\nclass T(TorchSmallCnn): pass",
            "torch",
        ),
        ("from elsewhere import Unknown\nclass T(Unknown): pass", "keras"),
        ("class T(T): pass", "keras"),
    ],
)
def test_base_classes_are_followed_into_the_modules_that_they_are_imported_from(
    tmp_path: Path, source: str, framework: str
) -> None:
    for folder in (tmp_path, tmp_path / "package", tmp_path / "package" / "inner"):  # without __init__.py
        path = folder / "bases.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text("raise AssertionError('imported')\nimport lakelens\nclass Mine(lakelens.TorchTrial): pass")
    assert framework_of(source, "T", [tmp_path], ("package",)) == framework


def test_an_entry_point_tells_its_framework(tmp_path: Path) -> None:
    (tmp_path / "trial.py").write_text("import lakelens\nclass T(lakelens.TorchTrial): pass")
    assert EntryPoint.parse(f"{tmp_path}/trial.py:T").framework == "torch"
    assert EntryPoint.parse("lakelens.training.trials.torch_small_cnn:TorchSmallCnn").framework == "torch"
    assert EntryPoint.parse("lakelens.training.trials.small_cnn:SmallCnn").framework == "keras"


def test_base_classes_are_followed_into_an_archive_as_spark_submit_sends_it(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "sent.zip", "w") as archive:
        archive.writestr("package/__init__.py", "raise AssertionError('imported')")
        archive.writestr("package/bases.py", "import lakelens\nclass Mine(lakelens.TorchTrial): pass")
    source = "from package.bases import Mine\nclass T(Mine): pass"
    assert framework_of(source, "T", [tmp_path / "sent.zip"]) == "torch"
