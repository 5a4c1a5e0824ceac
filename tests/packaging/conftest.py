"""A private copy of the checkout, what is built from it, and small environments that borrow this one's packages."""

from __future__ import annotations

import shutil
import sys
import venv
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable
from email.parser import HeaderParser
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, distributions, version
from pathlib import Path

import pytest
from borrowed import Borrower, clean_environment, make_borrower
from child_processes import run_to_end
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CHECKOUT = Path(__file__).resolve().parents[2]
FOLDERS = ("lakelens", "etl", "training", "search", "inference", "jobs", "notebooks")


def brought(requirements: Iterable[str], extras: frozenset[str], found: dict[tuple[str, frozenset[str]], bool]) -> None:
    """Follows requirements through what is installed here; notes each with whether it is."""
    for text in requirements:
        wanted = Requirement(text)
        if wanted.marker is not None and not any(wanted.marker.evaluate({"extra": one}) for one in extras | {""}):
            continue
        key = (canonicalize_name(wanted.name), frozenset(wanted.extras))
        if key in found:
            continue
        try:
            further = distribution(wanted.name).requires or []
        except PackageNotFoundError:
            found[key] = False
            continue
        found[key] = True
        brought(further, key[1], found)


@cache
def _shared_folders() -> frozenset[str]:
    """Folders of site-packages that several distributions put files into, such as `google`."""
    tops = Counter(top for one in distributions() for top in {file.parts[0] for file in one.files or []})
    return frozenset(top for top, count in tops.items() if count > 1)


def link(name: str, site_packages: Path) -> None:
    """Makes an installed distribution visible in another environment."""
    found = distribution(name)
    for file in found.files or []:
        top = file.parts[0]
        if top in ("..", "__pycache__"):
            continue
        inside = Path(file) if top in _shared_folders() else Path(top)
        target = site_packages / inside
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(Path(str(found.locate_file(inside))))


@pytest.fixture(scope="session")
def make_extra(
    wheel: Path, wheel_requirements: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Borrower]:
    """Makes an environment that holds the wheel and what some of its extras bring, and nothing else.

    The packages are links to those of the running environment. pip, which is given no index, then finds that the
    requirements of the extras are met: it would refuse the wheel otherwise.
    """

    def make(*extras: str) -> Borrower:
        found: dict[tuple[str, frozenset[str]], bool] = {}
        brought(wheel_requirements, frozenset(extras), found)
        absent = sorted(name for (name, _), is_here in found.items() if not is_here)
        if absent:
            pytest.skip(f"the running environment has no {', '.join(absent)}")
        folder = tmp_path_factory.mktemp("extra") / ("-".join(extras) or "base")
        venv.create(folder, with_pip=False, symlinks=True)
        made = Borrower(folder)
        for name, _ in found:
            link(name, made.site_packages)
        command = [sys.executable, "-m", "pip", "--python", str(made.python), "install", "--quiet", "--no-index"]
        named = f"lakelens[{','.join(extras)}] @ {wheel.as_uri()}" if extras else str(wheel)
        run_to_end([*command, named], env=clean_environment())
        return made

    return make


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is packaged, so that building leaves nothing in the checkout and two builds do not meet."""
    copy = tmp_path_factory.mktemp("sources") / "lakelens-checkout"
    copy.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "Makefile"):
        shutil.copy2(CHECKOUT / name, copy / name)
    for name in (*FOLDERS, ".ci", "constraints"):
        if (CHECKOUT / name).is_dir():
            shutil.copytree(CHECKOUT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "scratch-*"))
    return copy


@pytest.fixture(scope="session")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the checkout, built from its sdist."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(sources)]
    run_to_end(command, env=clean_environment())
    return next(out.glob("*.whl"))


@pytest.fixture(scope="session")
def wheel_requirements(wheel: Path) -> list[str]:
    """What the wheel says that it requires, extras included."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(archive.read(name).decode()).get_all("Requires-Dist") or []


@pytest.fixture
def borrower(tmp_path: Path) -> Borrower:
    """A new environment without lakelens."""
    return make_borrower(tmp_path / "environment")


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The folder of the checkout itself; tests only read it."""
    return CHECKOUT


@pytest.fixture(scope="session")
def lock() -> Path:
    """The file of `constraints/` that holds the versions of the running environment: the one of its Spark."""
    return CHECKOUT / "constraints" / f"spark-{'.'.join(version('pyspark').split('.')[:2])}.txt"
