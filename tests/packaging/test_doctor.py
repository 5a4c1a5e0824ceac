"""`lakelens doctor` on installations that are broken on purpose, and on this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from borrowed import put_metadata
from child_processes import run_to_end
from packaging.requirements import Requirement

from lakelens.errors import BuildError, RankFailedError
from lakelens.jobs.doctor import CHECKS, check, databricks_runtime, unmet_requirements, way_out


def doctor(folder: Path, *arguments: str, **variables: str) -> tuple[int, list[str], dict]:
    """Runs the doctor as a command; gives its exit code, its lines and the JSON object of the last one."""
    command = [sys.executable, "-m", "lakelens.jobs.cli", "doctor", *arguments]
    done = run_to_end(command, None, cwd=folder, timeout=580, env=os.environ | variables)
    lines = done.stdout.strip().splitlines()
    return done.returncode, lines[:-1], json.loads(lines[-1])


def shadow(folder: Path, package: str, code: str) -> dict[str, str]:
    """Puts a package of the same name in front of the real one."""
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").write_text(code, encoding="utf-8")
    return {"PYTHONPATH": str(folder)}


@pytest.mark.system
def test_each_broken_part_is_named_with_its_place_and_the_way_out_and_spares_the_others(checkout, tmp_path):
    """Petastorm fails at its import, Keras crashes its process, no Java is where one should be, and so is no store."""
    shadow(tmp_path / "shadows", "petastorm", "raise ImportError('legacy dataset is gone')\n")
    shadow(tmp_path / "shadows", "keras", "import os; os.abort()\n")
    (tmp_path / "store.db").write_text("this is no database")
    variables = {"PYTHONPATH": f"{tmp_path / 'shadows'}:{checkout}", "JAVA_HOME": str(tmp_path)}
    variables["MLFLOW_TRACKING_URI"] = "sqlite:///store.db"  # relative to where the user is
    words = {
        "python": [sys.executable],
        "java": [f"JAVA_HOME={tmp_path}"],
        "tensorflow": ["SIGABRT", "pip install"],
        "petastorm": ["legacy dataset is gone", str(tmp_path / "shadows" / "petastorm" / "__init__.py"), "pip install"],
        "mlflow": ["not a database", "MLFLOW_TRACKING_URI"],
    }
    parts = [word for part in words for word in ("--part", part)]
    code, lines, said = doctor(tmp_path, *parts, **variables)
    assert (code, said["ok"]) == (1, False)
    assert [(part["part"], part["ok"]) for part in said["parts"]] == [(part, part == "python") for part in words]
    assert ["BROKEN" in line for line in lines] == [part != "python" for part in words]
    details = {part["part"]: part["detail"] for part in said["parts"]}
    assert [word for part in words for word in words[part] if word not in details[part]] == []


@pytest.mark.system
def test_a_part_has_the_time_that_was_asked_for_and_is_ended_after_it(checkout):
    code, lines, _ = doctor(checkout, "--part", "tensorflow", "--timeout-s", "0.01")
    assert (code, len(lines)) == (1, 1)
    assert "no answer within 0 s" in lines[0]


@pytest.mark.system
def test_a_doctor_that_is_terminated_leaves_no_check_and_no_folder(checkout, tmp_path):
    started = tmp_path / "started"
    hangs = f"import os, pathlib, time; pathlib.Path({str(started)!r}).write_text(str(os.getpid())); time.sleep(600)\n"
    variables = shadow(tmp_path, "petastorm", hangs) | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "lakelens.jobs.cli", "doctor", "--part", "petastorm"]
    doctor = subprocess.Popen(command, cwd=checkout, env=os.environ | variables, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (started.exists() and started.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    doctor.terminate()
    said, _ = doctor.communicate(timeout=60)
    assert (doctor.returncode, json.loads(said)["error"]) == (143, "Terminated")
    assert not psutil.pid_exists(int(started.read_text()))
    assert list(tmp_path.glob("lakelens-doctor-*")) == []


@pytest.mark.system
@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (
            RankFailedError("Traceback\n  ...\n\nthe log", summary="rank 0 raised ImportError"),
            "rank 0 raised ImportError",
        ),
        (BuildError("it does not run:\n\n  undefined symbol"), "it does not run: | undefined symbol"),
    ],
)
def test_an_error_of_many_lines_is_one_line_of_the_doctor(error, detail, monkeypatch):
    def fail() -> str:
        raise error

    monkeypatch.setitem(CHECKS, "horovod", fail)
    assert check("horovod")["detail"] == detail


@pytest.mark.long
@pytest.mark.horovod
@pytest.mark.timeout(600)
def test_every_part_of_this_environment_works(checkout):
    code, lines, said = doctor(checkout, "--timeout-s", "270")
    assert [part["part"] for part in said["parts"] if not part["ok"]] == []
    assert [line.split()[0] for line in lines] == list(CHECKS)
    assert all(part["version"] for part in said["parts"])
    assert code == 0


@pytest.mark.unit
def test_the_runtime_is_named_by_its_variable_or_by_its_file(tmp_path):
    (tmp_path / "DBR_VERSION").write_text("17.3\n")
    assert databricks_runtime({"DATABRICKS_RUNTIME_VERSION": "16.4"}, tmp_path / "DBR_VERSION") == "16.4"
    assert databricks_runtime({}, tmp_path / "DBR_VERSION") == "17.3"
    assert databricks_runtime({}, tmp_path / "no file") is None


@pytest.mark.unit
def test_packages_that_are_too_old_or_missing_are_named_once(tmp_path, monkeypatch):
    for name, found in (("pillow", "9.4.0"), ("keras", "3.5.0"), ("mypy", "0.1"), ("torch", "2.14.0")):
        put_metadata(tmp_path, name, found)
    monkeypatch.syspath_prepend(str(tmp_path))
    declared = [
        Requirement("pillow>=10.3"),
        Requirement("numpy>=1.23"),
        Requirement("not-there; extra == 'databricks'"),
        Requirement("not-there-either; extra == 'torch'"),
        Requirement("keras>=3.11.3; extra == 'training'"),
        Requirement("keras>=3.11.3; extra == 'databricks'"),
        Requirement("mypy>=1.10; extra == 'dev'"),
        Requirement("torch>=2.2,<2.13; extra == 'torch'"),
    ]
    assert [one.name for one in unmet_requirements(declared, "databricks")] == ["pillow", "not-there", "keras"]
    assert [one.name for one in unmet_requirements(declared, "")] == ["pillow", "keras"]


@pytest.mark.unit
def test_no_pyspark_is_installed_on_a_databricks_cluster():
    unmet = [Requirement("pyspark>=3.5,<4.2"), Requirement("keras>=3.11.3")]
    assert way_out(unmet, databricks=False) == "pip install 'pyspark<4.2,>=3.5' 'keras>=3.11.3'"
    assert way_out(unmet, databricks=True).startswith("pip install 'keras>=3.11.3'; choose a runtime")
    assert "pip" not in way_out(unmet[:1], databricks=True)
