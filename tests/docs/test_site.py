"""The site is built as `make docs` builds it: strictly, with the pages of the API made of the package's docstrings."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

import lakelens
from lakelens.training.configuration.experiment import ExperimentConfig

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


@pytest.mark.system
@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_site_builds_strictly_and_describes_every_public_name(tmp_path: Path) -> None:
    site = tmp_path / "site"
    done = subprocess.run(
        [str(ROOT / ".ci" / "docs"), str(ROOT / ".docs-venv"), str(site)],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    described = "".join(page.read_text(encoding="utf-8") for page in (site / "api").glob("*.html"))
    # Errors, and packages that are public themselves, are described where they are defined.
    errors = {name for name in lakelens.__all__ if hasattr(lakelens.errors, name)}
    public = set(lakelens.__all__) - errors - {"__version__", "hvd", "search"}
    assert [name for name in public if f'id="lakelens.{name}"' not in described] == []
    for anchor in ("ImageTable.pin", "HorovodRunner.run", "errors.RankFailedError", "training.distributed.allreduce"):
        assert f'id="lakelens.{anchor}"' in described
    assert "Stores the new and changed files of a source, as one commit." in described
    architecture = (site / "architecture.html").read_text(encoding="utf-8")
    modules = [path.name for path in (ROOT / "etl").rglob("*.py") if path.name != "__init__.py"]
    assert [name for name in modules if f"<code>{name}</code>: " not in architecture] == []
    pages = [str(page.relative_to(DOCS).with_suffix(".html")) for page in DOCS.rglob("*.md")]
    assert [page for page in pages if not (site / page.replace("README", "index")).is_file()] == []


def pages_of(nav: Any) -> set[str]:
    """Every page of a navigation, at any depth."""
    if isinstance(nav, str):
        return {nav}
    return {page for part in (nav.values() if isinstance(nav, dict) else nav) for page in pages_of(part)}


@pytest.mark.unit
def test_the_page_of_a_notebook_has_the_outputs_of_its_present_code(tmp_path: Path) -> None:
    source = tmp_path / "01_story.py"
    source.write_text(
        "# Databricks notebook source\n# MAGIC %md\n# MAGIC # Story\n\n# COMMAND ----------\n\nprint(1)\n",
        encoding="utf-8",
    )
    picture = {"data": {"image/png": "iVBORw0KGgo="}}
    printed = [
        {"name": "stdout", "text": ["1\n"]},
        {"name": "stderr", "text": ["a warning"]},
        {"name": "stdout", "text": ["2\n"]},
    ]
    cell = {"cell_type": "code", "source": "print(1)", "outputs": [*printed, picture]}
    (tmp_path / "01_story.ipynb").write_text(json.dumps({"cells": [cell]}), encoding="utf-8")
    hook = runpy.run_path(str(ROOT / ".ci" / "notebook_pages.py"))
    hook["outputs_of"].__globals__["EXECUTED"] = tmp_path
    pictures: dict[str, bytes] = {}
    page = list(hook["page_of"](source, pictures))
    assert page == [
        "# Story",
        "```python\nprint(1)\n```",
        "```text\n1\n2\n```",
        "![output of the cell above](01_story-1.png)",
    ]
    assert pictures == {"01_story-1.png": b"\x89PNG\r\n\x1a\n"}
    source.write_text(source.read_text(encoding="utf-8").replace("print(1)", "print(2)"), encoding="utf-8")
    assert list(hook["page_of"](source, pictures)) == ["# Story", "```python\nprint(2)\n```"]


@pytest.mark.unit
def test_every_page_is_in_the_navigation() -> None:
    settings = YAML().load(ROOT / "mkdocs.yml")
    listed = pages_of(settings["nav"])
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    pages |= {f"notebooks/{notebook.stem}.md" for notebook in (ROOT / "notebooks").glob("[0-9]*.py")}
    hidden = [pattern.strip("/") for pattern in settings["not_in_nav"].split()]
    assert listed <= pages
    assert [page for page in pages - listed if not any(fnmatch(page, pattern) for pattern in hidden)] == []


@pytest.mark.unit
def test_pages_hold_no_placeholder_and_name_tests_that_exist() -> None:
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.py")}
    names = {path.rpartition("/")[2] for path in files}
    for page in [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        text = page.read_text(encoding="utf-8")
        if page.name != "commands.md":  # where they stand for the values of flags
            assert re.findall(r"\b[A-Z0-9]+_(?:RESULT|SIZE|MEASURED)\b", text) == [], page
        assert [path for path in re.findall(r"tests/[\w/]+\.py", text) if path not in files] == [], page
        assert [name for name in re.findall(r"\btest_\w+\.py", text) if name not in names] == [], page


@pytest.mark.unit
def test_the_guide_for_developers_imports_from_modules_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    modules = re.findall(r"from \.\.([\w.]+) import", text)
    assert modules
    assert [module for module in modules if not (ROOT / f"{module.replace('.', '/')}.py").is_file()] == []


@pytest.mark.unit
def test_every_decision_is_in_the_list_of_decisions() -> None:
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", (DOCS / "decisions" / "README.md").read_text(encoding="utf-8")))
    assert {page.name for page in (DOCS / "decisions").glob("*.md")} - {"README.md"} == listed


@pytest.mark.unit
def test_the_keys_that_stay_in_the_guide_from_determined_are_keys_of_experiments() -> None:
    page = (DOCS / "migration" / "determined.md").read_text(encoding="utf-8")
    kept = re.search(r"## Keys that stay\n(.*?)## Keys that stay and change", page, re.DOTALL)
    changed = re.search(r"## Keys that stay and change\n(.*?)## Keys that are refused", page, re.DOTALL)
    assert kept is not None
    assert changed is not None
    rows = re.findall(r"^\|([^|]*)\|", changed[1], re.MULTILINE)
    listed = re.findall(r"^[- ] ([^:\n]*)", kept[1], re.MULTILINE)
    keys = re.findall(r"`([\w.]+)`", "".join([*rows, *listed]))
    assert len(keys) > 30
    schema = ExperimentConfig.model_json_schema()
    for key in keys:
        if key in ("hyperparameters.global_batch_size", "environment.environment_variables"):
            continue
        section = schema
        for part in key.split("."):
            section = schema["$defs"].get(section.get("$ref", "").rpartition("/")[2], section)
            assert part in section["properties"], key
            section = section["properties"][part]
