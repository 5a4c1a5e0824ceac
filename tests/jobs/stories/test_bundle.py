"""The Databricks bundle: every resource is read by the classes of Databricks' own package, which refuse unknown fields.

No workspace can be reached here: what a workspace does with it is not tested.
"""

from __future__ import annotations

import re
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from setup_arguments import setup_arguments

import lakelens
from lakelens.jobs.cli import build_parser, main
from lakelens.training.configuration.experiment import ExperimentConfig

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
BUNDLE = ROOT / "jobs" / "databricks"
TARGETS = ("dev", "staging", "prod")
# What the command line fills in by itself.
GIVEN = {
    "workspace.artifact_path": "/Users/me@company.com/artifacts",
    "workspace.current_user.userName": "me@company.com",
    "workspace.file_path": "/Workspace/files",
}


def read(path: Path) -> dict[str, Any]:
    return YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))


def variables(target: str, folder: Path = BUNDLE) -> dict[str, Any]:
    bundle = read(folder / "databricks.yml")
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


def jobs(target: str, folder: Path = BUNDLE) -> dict[str, Any]:
    return filled(read(folder / "resources" / "jobs.yml")["resources"]["jobs"], variables(target, folder))


def wheels(folder: Path) -> set[Path]:
    """The wheels of all tasks; the command line takes their paths from the file of the task, not of the variable."""
    tasks = [task for job in jobs("prod", folder).values() for task in job["tasks"]]
    return {
        (folder / "resources" / library["whl"]).resolve()
        for task in tasks
        for library in task.get("libraries", [])
        if "whl" in library
    }


@pytest.mark.parametrize("target", TARGETS)
def test_every_job_has_only_fields_that_databricks_knows(target: str) -> None:
    from databricks.bundles.jobs import Job

    found = jobs(target)
    assert set(found) == {"lakelens_training", "lakelens_scoring", "lakelens_search", "lakelens_training_gpu"}
    for name, job in found.items():
        read_back = Job.from_dict(job).as_dict()
        assert [task["task_key"] for task in read_back["tasks"]] == [task["task_key"] for task in job["tasks"]], name
    given = filled(variables(target), variables(target))
    for table in ("table", "predictions", "candidates"):  # paths that ranks may read
        assert given[table].startswith(f"/Volumes/main/{given['schema']}/files/tables/")
    with pytest.raises(ValueError, match="num_wrkers"):
        Job.from_dict({"name": "x", "job_clusters": [{"job_cluster_key": "c", "new_cluster": {"num_wrkers": 1}}]})


def test_every_task_has_its_cluster_its_notebook_its_packages_and_a_command_that_the_command_line_takes() -> None:
    parser = build_parser()
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
                needed = [one["requirements"] for one in task["libraries"] if "requirements" in one]
                places = (task["notebook_task"]["notebook_path"], *needed)
                notebook, *files = ((BUNDLE / "resources" / place).resolve() for place in places)
                assert (notebook.is_file(), files) == (True, [BUNDLE / "requirements.txt"])
                parser.parse_args(task["notebook_task"]["base_parameters"]["arguments"].splitlines())


def test_the_bundle_and_the_dags_have_the_same_steps() -> None:
    dags = runpy.run_path(str(ROOT / "jobs" / "airflow" / "lakelens_steps.py"))
    raw = read(BUNDLE / "resources" / "jobs.yml")["resources"]["jobs"]
    for name, steps in (("lakelens_training", dags["TRAINING"]), ("lakelens_scoring", dags["SCORING"])):
        tasks = {task["task_key"]: task for task in raw[name]["tasks"]}
        for step in steps:
            task = tasks.pop(step.name)
            words = step.filled(lambda one: f"${{var.{one}}}", lambda one, key: f"{{{{tasks.{one}.values.{key}}}}}")
            words += ["--job", "{{job.id}}/{{job.run_id}}/{{task.name}}"] if step.is_job else []
            assert task["notebook_task"]["base_parameters"]["arguments"].splitlines() == words
            before = [one["task_key"] for one in task.get("depends_on", [])]
            if step.only_if is None:
                assert before == list(step.after)
            else:
                one, _, key = step.only_if.partition(".")
                gate = tasks.pop(f"if_{one}")
                condition = {"op": "EQUAL_TO", "left": f"{{{{tasks.{one}.values.{key}}}}}", "right": "true"}
                assert (before, gate["condition_task"]) == ([f"if_{one}"], condition)
                assert [found["task_key"] for found in gate["depends_on"]] == list(step.after)
        assert tasks == {}
    assert set(dags["DEFAULTS"]) - {"tracking_uri"} <= set(variables("dev"))


def test_the_requirements_are_what_the_extra_databricks_brings() -> None:
    lines = (BUNDLE / "requirements.txt").read_text(encoding="utf-8").splitlines()
    extra = setup_arguments()["extras_require"]["databricks"]
    assert [line for line in lines if not line.startswith("#")] == ["tensorflow", *extra]


def test_the_bundle_sends_the_wheel_that_make_wheel_writes() -> None:
    assert "pip wheel --quiet --no-deps --wheel-dir dist ." in (ROOT / "Makefile").read_text(encoding="utf-8")
    assert wheels(BUNDLE) == {ROOT / "dist" / f"lakelens-{lakelens.__version__}-py3-none-any.whl"}


def test_a_written_bundle_writes_into_the_users_schema_in_prod_alone(tmp_path: Path) -> None:
    source = "/Volumes/lake/nature/photos"
    flags = ["--table", "lake.nature.birds", "--source", source, "--model", "names", "--databricks"]
    assert main(["init", str(tmp_path), *flags]) == 0
    bundle = tmp_path / "databricks"
    own = {"table": "birds", "model": "names"}
    found = {target: filled(variables(target, bundle), variables(target, bundle)) for target in TARGETS}
    for target, schema in {"dev": "nature_dev", "staging": "nature_staging", "prod": "nature"}.items():
        assert {name: found[target][name] for name in own} == {
            name: f"lake.{schema}.{table}" for name, table in own.items()
        }
        assert found[target]["volume"] == f"/Volumes/lake/{schema}/files"
        assert found[target]["predictions"] == f"/Volumes/lake/{schema}/files/tables/predictions"
        assert found[target]["source"] == source
    assert "${workspace.file_path}/trial.py:NamesTrial" in (bundle / "databricks.yml").read_text(encoding="utf-8")
    arguments = jobs("prod", bundle)["lakelens_training"]["tasks"][0]["notebook_task"]["base_parameters"]["arguments"]
    assert arguments.splitlines()[:3] == ["etl", source, "lake.nature.birds"]
    (wheel,) = wheels(bundle)
    assert wheel == bundle / "dist" / f"lakelens-{lakelens.__version__}-py3-none-any.whl"


def test_a_written_bundle_takes_a_path_of_a_volume_as_its_table(tmp_path: Path) -> None:
    table, source = "/Volumes/main/nature/files/birds", "s3://lake/photos"
    assert main(["init", str(tmp_path), "--table", table, "--source", source, "--databricks"]) == 0
    bundle = tmp_path / "databricks"
    changed = {"table": table, "source": source, "model": "${var.catalog}.${var.schema}.birds"}
    given = {name: value for name, value in variables("dev", bundle).items() if name not in ("trial", "wheel")}
    assert given == {**{name: variables("dev")[name] for name in given}, **changed}


def test_the_search_of_the_bundle_is_complete_with_what_its_job_sets() -> None:
    task = jobs("prod")["lakelens_search"]["tasks"][0]
    given = task["notebook_task"]["base_parameters"]["arguments"].replace("{{job.parameters.version}}", "latest")
    args = build_parser().parse_args(given.splitlines())
    file = args.experiment.replace(GIVEN["workspace.file_path"], str(BUNDLE))
    config = ExperimentConfig.read(file, args.set)
    assert (config.searcher.name, config.data.version) == ("adaptive_asha", "latest")
    assert config.checkpoint_storage.path == "/Volumes/main/lakelens/files/checkpoints"


# In place of the node's Python: there is no Horovod, and the call that brings it is noted.
NODE = """#!/bin/sh
case "$*" in
    *"import horovod"*) exit 1 ;;
    *)
        echo "$PYTHONPATH $*" >"$(dirname "$0")/called"
        mkdir -p "$XDG_CACHE_HOME/lakelens/wheels/key"
        echo built >>"$XDG_CACHE_HOME/lakelens/wheels/key/horovod.whl"
        ;;
esac
"""


def run_init_script(folder: Path, *programs: str, wheel: str = "../../../dist/lakelens.whl") -> str:
    """Runs the init script as on a node with these programs; returns what it asked of Python."""
    folder.mkdir(exist_ok=True)
    if not wheel.startswith("/"):
        (folder / "lakelens-0.1.0-py3-none-any.whl").touch()
    for program in ("python", *programs):
        (folder / program).write_text(NODE, encoding="utf-8")
        (folder / program).chmod(0o755)
    script = (BUNDLE / "install_horovod.sh").read_text(encoding="utf-8")
    shared = {"LAKELENS_WHEELS": str(folder.parent / "kept"), "LAKELENS_BUILD": str(folder / "build")}
    variables = {"LAKELENS_WHEEL": wheel, "LAKELENS_ARTIFACTS": str(folder), **shared}
    subprocess.run(
        ["bash", "-c", script.replace("/databricks/python/bin/python", str(folder / "python"))],
        env={"PATH": f"{folder}:/usr/bin:/bin", **variables},
        check=True,
        capture_output=True,
    )
    return (folder / "called").read_text().replace(str(folder), "").strip()


def test_the_init_script_keeps_the_wheel_in_the_volume_and_builds_with_nccl_on_gpu_nodes(tmp_path: Path) -> None:
    command = "/lakelens-0.1.0-py3-none-any.whl -m lakelens.horovod_build"
    assert run_init_script(tmp_path / "cpu") == command
    assert run_init_script(tmp_path / "gpu", "nvidia-smi") == f"{command} --gpu"
    # The second node began with the wheel of the first.
    assert (tmp_path / "kept" / "key" / "horovod.whl").read_text() == "built\n" * 2


def test_the_init_script_takes_a_wheel_that_lies_in_a_volume(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        run_init_script(tmp_path / "node", wheel=f"{tmp_path}/lakelens.whl")
    assert b"lakelens.whl; deploy the bundle with --var wheel=PATH" in refused.value.stderr
    (tmp_path / "lakelens.whl").touch()
    assert run_init_script(tmp_path / "node", wheel=f"{tmp_path}/lakelens.whl").startswith(
        f"{tmp_path}/lakelens.whl -m"
    )
