"""The notebooks run from top to bottom in a real Jupyter kernel, and show pictures."""

from __future__ import annotations

import json
import re
import runpy
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from connect_server import connect_server
from kernels import kernel_in, outputs_of

import lakelens

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
NAMES = sorted(path.stem for path in NOTEBOOKS.glob("[0-9]*.py"))
# How many pictures those that show several show at least.
PICTURES = {"01_images_to_delta": 3, "05_score_and_evaluate": 2, "06_the_missing_class": 2, "08_detection": 2}
# Headings of the pages that a notebook shows inline.
PAGES = {
    "04_search": ("Learning curves", "Parallel coordinates", "Slots"),
    "05_score_and_evaluate": ("Confusion matrix", "Worst mistakes"),
    "08_detection": ("Average precision of both models", "Fewer mistakes now"),
}
# Values of widgets that make trainings short.
SMALL = {"scenes": "240", "epochs": "7"}
# As on most compute of Databricks; the others run ranks or searches on executors.
ON_CONNECT = ("01_images_to_delta", "05_score_and_evaluate")
WITH_BARS = ("02_one_process_to_many", "04_search", "05_score_and_evaluate")
WHEEL = f"lakelens-{lakelens.__version__}-py3-none-any.whl"
WIDGET = "application/vnd.jupyter.widget-view+json"


def notebook_of(path: Path) -> dict[str, Any]:
    converted: dict[str, Any] = runpy.run_path(str(NOTEBOOKS / "to_jupyter.py"))["notebook_of"](path.read_text("utf-8"))
    return converted


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for all notebooks, whose tables they share, with a kernel of this interpreter."""
    folder = tmp_path_factory.mktemp("notebooks")
    kernel_in(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(folder / "jupyter"))
        patch.setenv("PYTHONPATH", str(NOTEBOOKS.parent))
        patch.setenv("LAKELENS_WIDGETS", json.dumps({"folder": str(folder / "work")} | SMALL))
        yield folder


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.horovod
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_from_top_to_bottom(name, kernel, tmp_path, monkeypatch):
    import nbformat

    if name == "10_pytorch":
        pytest.importorskip("torch", reason="PyTorch is not installed")
    notebook = nbformat.from_dict(notebook_of(NOTEBOOKS / f"{name}.py"))
    started = time.monotonic()
    with connect_server(tmp_path) if name in ON_CONNECT else nullcontext() as url:
        if url is not None:
            monkeypatch.setenv("SPARK_REMOTE", url)
        outputs = outputs_of(notebook, kernel, place=NOTEBOOKS)
    print(f"{name}: {time.monotonic() - started:.0f} s")
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    nbformat.write(notebook, kernel / f"{name}.ipynb")
    assert len(pictures) >= PICTURES.get(name, 1)
    pages = "".join(output.get("data", {}).get("text/html", "") for output in outputs)
    assert [heading for heading in PAGES.get(name, ()) if heading not in pages] == []
    if name in WITH_BARS:
        assert any(WIDGET in one.get("data", {}) for one in outputs)


STAND_IN = """
import os
os.environ["DATABRICKS_RUNTIME_VERSION"] = "15.4"
class Values(dict):
    def set(self, *, key, value):
        self[key] = value
class Widgets(dict):
    def text(self, name, default):
        pass
class dbutils:
    class jobs:
        taskValues = Values()
    widgets = Widgets(arguments={arguments!r})
"""


def test_a_task_of_a_bundle_hands_on_its_values_and_fails_when_its_command_fails(kernel):
    import nbformat

    job = notebook_of(NOTEBOOKS.parent / "jobs" / "databricks" / "run_job.py")
    notebook = nbformat.v4.new_notebook()
    for flags in (["--model", "no name"], ["--dry-run"]):
        arguments = "\n".join(["init", str(kernel / "project"), *flags])
        notebook.cells += [
            nbformat.v4.new_code_cell(STAND_IN.format(arguments=arguments)),
            *nbformat.from_dict(job).cells,
        ]
    notebook.cells.append(nbformat.v4.new_code_cell("print(dict(dbutils.jobs.taskValues))"))
    outputs = outputs_of(notebook, kernel, place=kernel, allow_errors=True)
    (error,) = [output.evalue for output in outputs if output.output_type == "error"]
    assert error.startswith("the command ended with exit code 2")
    assert "'dry_run': True" in outputs[-1].text


class Widgets(dict[str, str]):
    """The part of `dbutils.widgets` that the notebooks use."""

    def get(self, name: str) -> str:  # type: ignore[override]
        return self[name]


@pytest.mark.spark
def test_on_databricks_notebooks_use_the_workspaces_tracking_and_folders_of_the_workers(spark, tmp_path, monkeypatch):
    widgets = Widgets(folder=str(tmp_path), table="main.default.digits")
    given = {"dbutils": SimpleNamespace(widgets=widgets), "spark": spark}
    here = runpy.run_path(str(NOTEBOOKS / "setup.py"), given)
    assert here["store_of"](here["folder_of"]("folder")) == f"sqlite:///{tmp_path}/mlflow.db"
    assert here["experiment_of"]("notebook-02") == "notebook-02"
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "15.4")
    there = runpy.run_path(str(NOTEBOOKS / "setup.py"), given)
    assert there["store_of"](tmp_path) is None
    assert re.fullmatch(r"/Users/[^/]+/lakelens-notebook-02", there["experiment_of"]("notebook-02"))
    with pytest.raises(ValueError, match=r"'folder' is .*, which the workers do not have; give a folder of a volume"):
        there["folder_of"]("folder")
    assert there["image_table"](tmp_path).location == "main.default.digits"
    widgets["table"] = ""
    table = there["table_of_digits"](tmp_path)
    assert table.location == there["path_of"](table) == str(tmp_path / "tables" / "digits")
    with pytest.raises(ValueError, match=r"there is a table .* already; name another in the widget 'table'"):
        there["new_table"](tmp_path)


def test_a_notebook_holds_no_output_and_asks_for_its_folder_and_table():
    assert not list(NOTEBOOKS.glob("*.ipynb"))
    for path in (NOTEBOOKS / f"{name}.py" for name in NAMES):
        notebook = notebook_of(path)
        assert path.read_text(encoding="utf-8").startswith("# Databricks notebook source\n")
        assert notebook["cells"][0]["cell_type"] == "markdown"
        assert notebook["cells"][1]["source"] == "%run -i ./setup.py"
        source = path.read_text(encoding="utf-8")
        assert all(f'dbutils.widgets.text("{widget}"' in source for widget in ("folder", "table"))
        assert "sqlite:" not in source
        assert 'dbutils.widgets.text("folder", default_folder()' in source
        assert not re.search(r'experiment(_name)?"?[=:] ?"', source), path
    setup = (NOTEBOOKS / "setup.py").read_text(encoding="utf-8")
    assert f'# MAGIC # %pip install "/Volumes/main/default/libraries/{WHEEL}[databricks]"\n' in setup
