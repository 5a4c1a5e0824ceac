"""The scripts that set up a checkout and run its tests, each in one story."""

from __future__ import annotations

import runpy
import shutil
import sys
import venv
from pathlib import Path
from types import SimpleNamespace

import pytest
from borrowed import clean_environment
from child_processes import run_to_end

from lakelens.errors import MissingDependencyError

pytestmark = pytest.mark.system

STACK = "spark-4.1" if sys.version_info >= (3, 12) else "spark-3.5"  # one that takes this Python
LOCK = f"constraints/{STACK}.txt"
# What the set-up of a checkout does not read.
UNUSED = shutil.ignore_patterns("etl", "training", "search", "inference", "jobs", "notebooks")
# A Python that tells the search for one another version than its own.
TOO_NEW = f"""#!/bin/sh
shift
exec "{sys.executable}" -c "import sys; sys.version_info = (3, 14, 0, 'final', 0); exec(sys.argv[1])" "$@"
"""


def loaded(script: Path) -> SimpleNamespace:
    """The names of a script of `.ci`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))
        return SimpleNamespace(**runpy.run_path(str(script)))


@pytest.fixture
def environments(sources: Path, tmp_path: Path) -> SimpleNamespace:
    """`.ci/environment.py` of a private copy of the checkout."""
    clone = tmp_path / "clone"
    shutil.copytree(sources, clone, ignore=UNUSED)
    return loaded(clone / ".ci" / "environment.py")


def test_a_finished_environment_is_left_alone_until_its_requirements_change(environments, tmp_path, capfd):
    venv.create(tmp_path / "environment", with_pip=False, symlinks=True)
    environment = environments.Environment(tmp_path / "environment", environments.CHECKOUT / LOCK)
    environment.note("packages", {"fingerprint": environments.fingerprint(environment)})
    environments.set_up(environment, horovod=False)
    assert capfd.readouterr() == ("", "")
    environment.installing.touch()  # as an interrupt leaves it
    assert not environments.packages_are_current(environment)
    environment.installing.unlink()
    with environment.lock.open("a", encoding="utf-8") as file:
        file.write("# another line\n")
    assert not environments.packages_are_current(environment)


def test_a_folder_that_is_no_environment_is_never_removed(environments, tmp_path):
    folder = tmp_path / "photographs"
    folder.mkdir()
    (folder / "one.jpg").touch()
    with pytest.raises(MissingDependencyError, match=r"photographs exists and is not an environment.*make VENV="):
        environments._make_folder(environments.Environment(folder, environments.CHECKOUT / LOCK))
    assert (folder / "one.jpg").exists()


def test_a_set_up_passes_over_a_python_that_is_too_new_and_names_a_missing_compiler(sources, tmp_path):
    programs = tmp_path / "programs"  # for PATH: a Python that is too new, this one, and no compiler
    programs.mkdir()
    for name in ("sh", "env", "sed", "cat", "dirname", "java"):
        if found := shutil.which(name):
            (programs / name).symlink_to(found)
    (programs / "python3").write_text(TOO_NEW, encoding="utf-8")
    (programs / "python3").chmod(0o755)
    this_python = programs / f"python3.{sys.version_info.minor}"
    this_python.symlink_to(sys.executable)
    variables = {"PATH": str(programs), "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = ["/bin/sh", str(sources / ".ci" / "setup"), str(tmp_path / "environment"), STACK]
    done = run_to_end(command, 2, env=variables)
    assert done.stdout == ""
    for text in ("g++", "apt-get install", "dnf install gcc-c++", "brew install gcc"):
        assert text in done.stderr
    assert not (tmp_path / "environment").exists()
    this_python.unlink()
    refused = run_to_end(command, 2, env=variables | {"FIND_PYTHON_ROOT": str(tmp_path)})
    assert "3.14.0 is not 3." in refused.stderr
    assert "make PYTHON=" in refused.stderr


def test_bare_make_prints_help(checkout):
    done = run_to_end(["make"], cwd=checkout, env=clean_environment())
    for target in ("setup", "demo", "test", "test-unit", "lint", "doctor", "clean", "wheel"):
        assert f"make {target} " in done.stdout


def test_packages_come_from_where_pip_takes_them(checkout):
    configuration = [
        "global.index-url='https://first.example/simple'",
        "global.extra-index-url='\\nhttps://second.example/simple\\nhttps://third.example/simple'",
        "global.no-cache-dir='true'",
        "install.index-url='https://own.example/simple'",
        ":env:.find-links='/wheels /more'",
        ":env:.cert='/certificates.pem'",
    ]
    assert loaded(checkout / ".ci" / "packages.py").uv_settings(
        configuration, {"SSL_CERT_FILE": "/of/uv.pem", "HOME": "/root"}
    ) == {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_DEFAULT_INDEX": "https://own.example/simple",
        "UV_INDEX": "https://second.example/simple https://third.example/simple",
        "UV_FIND_LINKS": "/wheels,/more",
        "SSL_CERT_FILE": "/of/uv.pem",
        "HOME": "/root",
    }
