"""The set-up of a checkout: what it checks before a download, what it repairs, when it does nothing."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
import time
import venv
from pathlib import Path
from types import ModuleType

import pytest

from lakelens.errors import MissingDependencyError
from lakelens.horovod_patch import MARK

pytestmark = pytest.mark.system

STACK = "spark-4.1" if sys.version_info >= (3, 12) else "spark-3.5"  # one that takes this Python
LOCK = f"constraints/{STACK}.txt"
# What the set-up of a checkout does not read.
UNUSED = shutil.ignore_patterns("etl", "training", "search", "inference", "jobs", "notebooks")


@pytest.fixture
def setup_module_of(sources: Path, tmp_path: Path) -> ModuleType:
    """`.ci/environment.py` of a private copy of the checkout."""
    clone = tmp_path / "clone"
    shutil.copytree(sources, clone, ignore=UNUSED)
    spec = importlib.util.spec_from_file_location("environment_of_clone", clone / ".ci" / "environment.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    path = list(sys.path)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = path
        del sys.modules[spec.name]
    return module


@pytest.fixture
def finished(setup_module_of: ModuleType, tmp_path: Path) -> object:
    """An environment whose set-up has ended well, as far as its notes tell."""
    folder = tmp_path / "environment"
    venv.create(folder, with_pip=False, symlinks=True)
    (folder / "bin" / "pip").touch()
    environment = setup_module_of.Environment(folder, setup_module_of.CHECKOUT / LOCK)
    environment.note("packages", {"fingerprint": setup_module_of.fingerprint(environment)})
    environment.note("horovod", {"fingerprint": setup_module_of.fingerprint(environment), "change": MARK})
    return environment


@pytest.fixture
def machine_without_compiler(tmp_path: Path) -> Path:
    """A folder for PATH with this Python, make, and no compiler."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("sh", "env", "sed", "cat", "dirname", "make", "java"):
        found = shutil.which(name)
        if found:
            (programs / name).symlink_to(found)
    (programs / "python3").symlink_to(sys.executable)
    return programs


def test_a_finished_environment_is_left_alone(
    setup_module_of: ModuleType, finished: object, capfd: pytest.CaptureFixture[str]
) -> None:
    setup_module_of.set_up(finished, horovod=True)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("changed", [LOCK, "setup.py"])
def test_a_changed_requirement_is_installed_again(setup_module_of: ModuleType, finished: object, changed: str) -> None:
    assert setup_module_of.packages_are_current(finished)
    with (setup_module_of.CHECKOUT / changed).open("a", encoding="utf-8") as file:
        file.write("# another line\n")
    assert not setup_module_of.packages_are_current(finished)
    assert not setup_module_of.horovod_is_current(finished)


def test_an_interrupted_installation_is_not_taken_for_a_finished_one(
    setup_module_of: ModuleType, finished: object
) -> None:
    finished.installing.touch()
    assert not setup_module_of.packages_are_current(finished)


def test_a_java_that_has_gone_is_noticed(setup_module_of: ModuleType, finished: object, tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.touch()
    finished.note("packages", {"fingerprint": setup_module_of.fingerprint(finished), "java": str(java)})
    assert setup_module_of.packages_are_current(finished)
    java.unlink()
    assert not setup_module_of.packages_are_current(finished)


def test_a_half_made_environment_is_made_again(setup_module_of: ModuleType, finished: object) -> None:
    (finished.folder / "left-over").touch()
    finished.installing.touch()
    setup_module_of._make_folder(finished)
    assert not (finished.folder / "left-over").exists()
    assert subprocess.run([str(finished.python), "-m", "pip", "--version"], check=False).returncode == 0


def test_a_folder_that_is_no_environment_is_never_removed(setup_module_of: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "photographs"
    folder.mkdir()
    (folder / "one.jpg").touch()
    with pytest.raises(MissingDependencyError, match=r"photographs exists and is not an environment.*make VENV="):
        setup_module_of._make_folder(setup_module_of.Environment(folder, setup_module_of.CHECKOUT / LOCK))
    assert (folder / "one.jpg").exists()


def test_a_missing_compiler_is_named_before_anything_is_made(
    sources: Path, machine_without_compiler: Path, tmp_path: Path
) -> None:
    variables = {
        "PATH": str(machine_without_compiler),
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        ["/bin/sh", str(sources / ".ci" / "setup"), str(tmp_path / "environment"), STACK],
        capture_output=True,
        text=True,
        check=False,
        env=variables,
    )
    assert (done.returncode, done.stdout) == (2, "")
    for text in ("g++", "apt-get install", "dnf install gcc-c++", "brew install gcc"):
        assert text in done.stderr
    assert not (tmp_path / "environment").exists()


def test_bare_make_prints_help(checkout: Path, clean_environment: dict[str, str]) -> None:
    done = subprocess.run(["make"], capture_output=True, text=True, check=False, cwd=checkout, env=clean_environment)
    assert done.returncode == 0
    for target in ("setup", "demo", "test", "test-unit", "lint", "doctor", "clean", "wheel"):
        assert f"make {target} " in done.stdout


def test_make_hands_the_users_images_to_the_demo(checkout: Path, clean_environment: dict[str, str]) -> None:
    done = subprocess.run(
        ["make", "--dry-run", "demo", "IMAGES=/my images"],
        capture_output=True,
        text=True,
        check=False,
        cwd=checkout,
        env=clean_environment,
    )
    assert '/lakelens" demo --images "/my images"' in done.stdout


def test_two_set_ups_at_once_wait_for_each_other(setup_module_of: ModuleType) -> None:
    clone = setup_module_of.CHECKOUT
    code = (
        "import fcntl, os, sys\n"
        f"fcntl.flock(os.open({os.fspath(clone)!r}, os.O_RDONLY), fcntl.LOCK_EX)\n"
        "print('held', flush=True); sys.stdin.readline()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as holder:
        assert holder.stdout.readline() == "held\n"
        entered = threading.Event()

        def enter() -> None:
            with setup_module_of._locked():
                entered.set()

        waiter = threading.Thread(target=enter)
        waiter.start()
        assert not entered.wait(0.3)
        holder.communicate("\n", timeout=60)
        assert entered.wait(60)
        waiter.join()


def test_a_set_up_that_was_killed_holds_the_lock_until_its_pip_has_gone(
    setup_module_of: ModuleType, tmp_path: Path
) -> None:
    """The killed process's child writes into the environment for as long as it lives."""
    clone = setup_module_of.CHECKOUT
    started, end, log = tmp_path / "started", tmp_path / "end", tmp_path / "log"
    code = (
        f"import sys; sys.path.insert(0, {os.fspath(clone / '.ci')!r})\n"
        "import environment, pathlib\n"
        f"child = ['sh', '-c', 'touch {started}; until [ -e {end} ]; do sleep 0.1; done']\n"
        "with environment._locked() as lock:\n"
        f"    environment.run_logged(child, pathlib.Path({os.fspath(log)!r}), 'pip', str, keep_open=[lock])\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    while not started.exists():
        assert parent.poll() is None
        time.sleep(0.01)
    parent.kill()
    parent.wait()
    handle = os.open(clone, os.O_RDONLY)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        end.touch()
        fcntl.flock(handle, fcntl.LOCK_EX)  # given once the child has ended
    finally:
        end.touch()
        os.close(handle)
