"""Every way to install lakelens, and what lands where."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from borrowed import Borrower

pytestmark = pytest.mark.system

FOLDERS = ("lakelens", "etl", "training", "search", "inference", "jobs", "notebooks")

# Imports every package; says where each lies and whether anything of ours can be imported without its prefix.
PROBE = """
import importlib, importlib.util, json
inside = ("etl", "training", "training.trials", "inference", "jobs")
names = ["lakelens", *(f"lakelens.{name}" for name in inside)]
found = {name: importlib.import_module(name).__file__ for name in names}
bare = [name for name in ("etl", "training", "search", "inference", "jobs") if importlib.util.find_spec(name)]
print(json.dumps({"found": found, "bare": bare}))
"""


def probe(environment: Borrower, **variables: str) -> dict:
    return json.loads(environment.run(PROBE, **variables))


def python_files(sources: Path) -> set[str]:
    """What the mapping promises: etl/model/schema.py of the checkout is lakelens/etl/schema.py of the wheel."""
    found = [path for folder in FOLDERS for path in (sources / folder).rglob("*.py")]
    return {f"lakelens/{path.relative_to(sources).as_posix().removeprefix('lakelens/')}" for path in found}


def templates(sources: Path) -> set[str]:
    """What `lakelens init` writes besides Python files, and the templates of HTML pages."""
    found = [path for pattern in ("*.yml", "*.sh", "requirements.txt") for path in (sources / "jobs").rglob(pattern)]
    found += [path for folder in FOLDERS for path in (sources / folder).rglob("*.html")]
    return {f"lakelens/{path.relative_to(sources).as_posix().removeprefix('lakelens/')}" for path in found}


def test_an_editable_installation_imports_the_checkout_and_modules_that_are_added_later(sources, borrower, tmp_path):
    clone = tmp_path / "clone"
    shutil.copytree(sources, clone)
    borrower.install("--editable", str(clone))
    seen = probe(borrower)
    assert seen["bare"] == []
    assert seen["found"]["lakelens.etl"] == str(clone / "etl" / "__init__.py")
    names = {path.name for path in borrower.site_packages.iterdir()} - {"borrowed.pth", "__pycache__"}
    assert all(name.startswith(("lakelens-", "__editable__")) for name in names)
    (clone / "etl" / "added_later.py").write_text("VALUE = 7\n")
    assert borrower.run("from lakelens.etl.added_later import VALUE; print(VALUE)") == "7"


def test_a_bare_clone_or_a_wheel_on_the_path_is_enough(sources, wheel, borrower):
    for path, package in ((sources, sources), (wheel, wheel / "lakelens")):
        seen = probe(borrower, PYTHONPATH=str(path))
        assert seen["found"]["lakelens.etl"] == str(package / "etl" / "__init__.py")
        assert bool(seen["bare"]) == (path == sources)


def test_the_wheel_holds_every_module_and_template_and_nothing_else(wheel, sources):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        licences = [name for name in archive.namelist() if name.endswith("LICENSE")]
    assert names == python_files(sources) | templates(sources) | {"lakelens/py.typed"}
    assert licences, "the licence text has to travel with the wheel"
