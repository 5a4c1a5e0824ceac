"""The Databricks bundle: every resource is read by the classes of Databricks' own package, which refuse unknown fields.

No workspace can be reached here: what a workspace does with it is not tested.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

pytestmark = pytest.mark.unit

JOBS = Path(__file__).resolve().parents[2] / "jobs"
BUNDLE = JOBS / "databricks"
# What the command line fills in by itself.
GIVEN = {"workspace.current_user.userName": "me@company.com", "workspace.file_path": "/Workspace/files"}


def read(path: Path) -> dict[str, Any]:
    return YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))


def variables(target: str) -> dict[str, Any]:
    bundle = read(BUNDLE / "databricks.yml")
    defaults = {name: one["default"] for name, one in bundle["variables"].items()}
    return {**defaults, **bundle["targets"][target].get("variables", {})}


def filled(value: Any, given: dict[str, Any]) -> Any:
    """Fills `${...}` as the command line does; an unknown name is a KeyError."""
    if isinstance(value, dict):
        return {key: filled(item, given) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, given) for item in value]
    if not isinstance(value, str):
        return value
    whole = re.fullmatch(r"\$\{var\.(\w+)\}", value)
    if whole:
        return filled(given[whole[1]], given)

    def known(found: re.Match[str]) -> str:
        name = found[1]
        return str(filled(given[name.removeprefix("var.")], given) if name.startswith("var.") else GIVEN[name])

    return re.sub(r"\$\{([\w.]+)\}", known, value)


def jobs(target: str) -> dict[str, Any]:
    return filled(read(BUNDLE / "resources" / "jobs.yml")["resources"]["jobs"], variables(target))


@pytest.mark.parametrize("target", ["dev", "staging", "prod"])
def test_every_job_has_only_fields_that_databricks_knows(target: str) -> None:
    from databricks.bundles.jobs import Job

    found = jobs(target)
    assert set(found) == {"lakelens_training", "lakelens_scoring", "lakelens_search", "lakelens_training_gpu"}
    for name, job in found.items():
        read_back = Job.from_dict(job).as_dict()
        assert [task["task_key"] for task in read_back["tasks"]] == [task["task_key"] for task in job["tasks"]], name
    with pytest.raises(ValueError, match="num_wrkers"):
        Job.from_dict({"name": "x", "job_clusters": [{"job_cluster_key": "c", "new_cluster": {"num_wrkers": 1}}]})


def test_every_task_has_its_cluster_its_notebook_and_tasks_to_depend_on() -> None:
    for job in jobs("dev").values():
        clusters = {one["job_cluster_key"]: one["new_cluster"] for one in job["job_clusters"]}
        keys = [task["task_key"] for task in job["tasks"]]
        for cluster in clusters.values():
            assert cluster["data_security_mode"] == "SINGLE_USER"
            assert cluster["num_workers"] >= 1
            assert cluster["spark_conf"]["spark.dynamicAllocation.enabled"] == "false"
        for task in job["tasks"]:
            assert {one["task_key"] for one in task.get("depends_on", [])} <= set(keys[: keys.index(task["task_key"])])
            if "notebook_task" in task:
                assert task["job_cluster_key"] in clusters
                assert (BUNDLE / "resources" / task["notebook_task"]["notebook_path"]).resolve().is_file()


def test_the_bundle_and_the_dags_have_the_same_steps() -> None:
    sys.path.insert(0, str(JOBS / "airflow"))
    try:
        import lakelens_steps
    finally:
        sys.path.remove(str(JOBS / "airflow"))
    raw = read(BUNDLE / "resources" / "jobs.yml")["resources"]["jobs"]
    for name, steps in (("lakelens_training", lakelens_steps.TRAINING), ("lakelens_scoring", lakelens_steps.SCORING)):
        wanted = lakelens_steps.databricks_tasks(
            steps, lambda one: f"${{var.{one}}}", {"job_cluster_key": "cpu"}, "../run_job.py", "${var.wheel}"
        )
        found = [{"depends_on": [], **task} for task in raw[name]["tasks"]]
        assert found == wanted
    assert set(lakelens_steps.DEFAULTS) - {"results", "tracking_uri"} <= set(variables("dev"))


def test_every_lakelens_command_of_the_bundle_is_one_that_the_command_line_takes() -> None:
    from lakelens.jobs.cli import build_parser

    for job in jobs("prod").values():
        for task in job["tasks"]:
            if "notebook_task" in task:
                arguments = task["notebook_task"]["base_parameters"]["arguments"].splitlines()
                build_parser().parse_args(arguments)


def test_the_init_script_is_a_shell_script() -> None:
    subprocess.run(["bash", "-n", str(BUNDLE / "install_horovod.sh")], check=True)
