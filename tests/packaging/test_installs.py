"""Every way to install lakelens, and what lands where."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from setup_arguments import setup_requirements

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


def top_of_site_packages(environment: Borrower) -> set[str]:
    return {path.name for path in environment.site_packages.iterdir()} - {"borrowed.pth", "__pycache__"}


def python_files(sources: Path) -> set[str]:
    """What the mapping promises: etl/model/schema.py of the checkout is lakelens/etl/schema.py of the wheel."""
    files = set()
    for folder in FOLDERS:
        for path in (sources / folder).rglob("*.py"):
            inside = path.relative_to(sources).as_posix()
            files.add(inside if folder == "lakelens" else f"lakelens/{inside}")
    return files


def templates(sources: Path) -> set[str]:
    """What `lakelens init` writes besides Python files, and the templates of HTML pages."""
    found = [path for pattern in ("*.yml", "*.sh", "requirements.txt") for path in (sources / "jobs").rglob(pattern)]
    found += [path for folder in FOLDERS for path in (sources / folder).rglob("*.html")]
    return {f"lakelens/{path.relative_to(sources).as_posix().removeprefix('lakelens/')}" for path in found}


def named(requirements: list[str]) -> set[tuple[str, SpecifierSet]]:
    """The packages and their ranges, without the extras that bring them."""
    parsed = map(Requirement, requirements)
    return {(canonicalize_name(one.name), one.specifier) for one in parsed}


def test_an_editable_installation_imports_the_checkout_and_modules_that_are_added_later(
    sources: Path, borrower: Borrower, tmp_path: Path
) -> None:
    clone = tmp_path / "clone"
    shutil.copytree(sources, clone)
    borrower.install("--editable", str(clone))
    seen = probe(borrower)
    assert seen["bare"] == []
    assert seen["found"]["lakelens.etl"] == str(clone / "etl" / "__init__.py")
    assert all(name.startswith(("lakelens-", "__editable__")) for name in top_of_site_packages(borrower))
    (clone / "etl" / "added_later.py").write_text("VALUE = 7\n")
    assert borrower.run("from lakelens.etl.added_later import VALUE; print(VALUE)") == "7"


def test_a_bare_clone_or_a_wheel_on_the_path_is_enough(sources: Path, wheel: Path, borrower: Borrower) -> None:
    for path, package in ((sources, sources), (wheel, wheel / "lakelens")):
        seen = probe(borrower, PYTHONPATH=str(path))
        assert seen["found"]["lakelens.etl"] == str(package / "etl" / "__init__.py")
        assert bool(seen["bare"]) == (path == sources)


def test_the_wheel_holds_every_module_and_template_and_nothing_else(wheel: Path, sources: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        licences = [name for name in archive.namelist() if name.endswith("LICENSE")]
    assert names == python_files(sources) | templates(sources) | {"lakelens/py.typed"}
    assert licences, "the licence text has to travel with the wheel"


def test_an_installed_wheel_puts_only_lakelens_at_the_top(wheel: Path, borrower: Borrower) -> None:
    borrower.install(str(wheel))
    seen = probe(borrower)
    assert seen["bare"] == []
    assert all(path.startswith(str(borrower.site_packages)) for path in seen["found"].values())
    assert {name.partition("-")[0] for name in top_of_site_packages(borrower)} == {"lakelens"}


def test_the_wheel_asks_for_what_setup_asks_for(wheel_requirements: list[str]) -> None:
    assert named(wheel_requirements) == named(setup_requirements())
