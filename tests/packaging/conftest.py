"""A private copy of the checkout, what is built from it, and small environments that borrow this one's packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
FOLDERS = ("lakelens", "etl", "training", "search", "inference", "jobs", "notebooks")


@dataclass(frozen=True)
class Borrower:
    """An environment of its own whose other packages are those of the running environment.

    Attributes:
        folder: The environment.
    """

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        return next(self.folder.glob("lib/python3.*/site-packages"))

    def install(self, *arguments: str) -> None:
        """Installs with the running environment's pip, without a download."""
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet", "--no-deps"]
        command += ["--no-index", "--no-build-isolation", "--ignore-installed", "--no-cache-dir", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=clean_environment())
        assert done.returncode == 0, done.stdout + done.stderr

    def run(self, code: str, **variables: str) -> str:
        """Runs Python code outside the checkout and returns what it printed."""
        done = subprocess.run(
            [str(self.python), "-c", code],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            env=clean_environment() | variables,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()


def clean_environment() -> dict[str, str]:
    """The environment without what would lead an interpreter to this checkout or to an installation elsewhere."""
    dropped = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_USER", "PIP_PREFIX", "SPARK_HOME", "MAKEFLAGS", "MFLAGS")
    return {name: value for name, value in os.environ.items() if name not in dropped}


def make_borrower(folder: Path) -> Borrower:
    """Makes an environment in 0.1 s: no pip, and a path file to this environment's packages.

    Path files of the folder that a path file names are not read, so an editable lakelens of this environment stays out.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    made = Borrower(folder)
    (made.site_packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return made


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is packaged, so that building leaves nothing in the checkout and two builds do not meet."""
    copy = tmp_path_factory.mktemp("sources") / "lakelens-checkout"
    copy.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "constraints.txt", "Makefile"):
        shutil.copy2(CHECKOUT / name, copy / name)
    for name in (*FOLDERS, ".ci"):
        if (CHECKOUT / name).is_dir():
            shutil.copytree(CHECKOUT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "scratch-*"))
    return copy


@pytest.fixture(scope="session")
def built(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheel and the sdist of the checkout."""
    out = tmp_path_factory.mktemp("dist")
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--sdist",
        "--wheel",
        "--outdir",
        str(out),
        str(sources),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=clean_environment())
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="session")
def wheel(built: Path) -> Path:
    """The wheel of the checkout."""
    return next(built.glob("*.whl"))


@pytest.fixture(scope="session")
def sdist(built: Path) -> Path:
    """The source distribution of the checkout."""
    return next(built.glob("*.tar.gz"))


@pytest.fixture(scope="session", name="make_borrower")
def make_borrower_fixture() -> Callable[[Path], Borrower]:
    """Makes an environment without lakelens in the folder that it is given."""
    return make_borrower


@pytest.fixture
def borrower(tmp_path: Path) -> Borrower:
    """A new environment without lakelens."""
    return make_borrower(tmp_path / "environment")


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The folder of the checkout itself; tests only read it."""
    return CHECKOUT


@pytest.fixture(name="clean_environment")
def clean_environment_fixture() -> dict[str, str]:
    """Variables for a process that is to find nothing of this checkout by accident."""
    return clean_environment()
