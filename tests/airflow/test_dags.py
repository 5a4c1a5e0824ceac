"""The DAGs in a real Airflow, on scanned digits.

`make test-airflow` makes the environments that LAKELENS_AIRFLOW and LAKELENS_AIRFLOW3 name: Airflow cannot live in
lakelens's own.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from mlflow_stores import put_store

pytestmark = [pytest.mark.airflow, pytest.mark.long, pytest.mark.timeout(1500)]

ROOT = Path(__file__).resolve().parents[2]
AIRFLOW = Path(os.environ.get("LAKELENS_AIRFLOW", ROOT / ".airflow-venv")) / "bin" / "airflow"
AIRFLOW_3 = Path(os.environ.get("LAKELENS_AIRFLOW3", ROOT / ".airflow3-venv")) / "bin" / "airflow"
# The parts of an Airflow 3 with its own scheduler; a worker that is silent for so long has failed its task.
PARTS, SILENT_S = ("api-server", "scheduler", "dag-processor"), 20
PER_CLASS = 24
# Images of one class that arrive late enough to move its share, too few to be enough new rows.
LATE_CLASS, LATE_IMAGES = "three", 12
TRAINING_5 = ("lakelens_training", 5)
TRAINING_TASKS = ("etl", "stale", "if_stale", "train", "score", "evaluate", "promote")


class Pipeline:
    """A folder with images and tables, and an Airflow whose DAGs work on them."""

    command = AIRFLOW

    def __init__(self, folder: Path) -> None:
        from lakelens.jobs.demo import write_digits

        self.folder = folder
        self.images = write_digits(folder / "digits")
        for place in (self.images.source, self.images.arrivals):
            for file in sorted(place.rglob("*.jpg")):
                number = re.search(r"_(\d+)\.jpg$", file.name)
                if number is None or int(number[1]) > PER_CLASS:
                    is_late = file.parent.name.endswith(LATE_CLASS) and file not in self.images.broken
                    if is_late and number is not None and int(number[1]) <= PER_CLASS + LATE_IMAGES:
                        (folder / "late").mkdir(exist_ok=True)
                        file.rename(folder / "late" / file.name)
                        self.late_folder = file.parent
                    else:
                        file.unlink()
        self.store = put_store(folder)
        self.parameters = {
            "source": str(self.images.source),
            **{name: str(folder / name) for name in ("table", "predictions", "candidates", "checkpoints", "reports")},
            "model": "digits",
            "experiment": "digits",
            "size": 16,
            "epochs": 30,
            "global_batch_size": 32,
            "min_new_rows": 5,
            "max_drift": 1.0,
        }
        self.home = folder / "airflow"
        self.airflow("db", "migrate")

    def environment(self) -> dict[str, str]:
        variables = {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "jobs" / "airflow"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "LAKELENS_COMMAND": str(self._command()),
            "LAKELENS_PARAMETERS": json.dumps(self.parameters),
            "LAKELENS_RETRY_DELAY_S": "1",
            "MLFLOW_TRACKING_URI": self.store,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
        }
        return {**os.environ, **variables}

    def airflow(self, *arguments: str) -> str:
        done = subprocess.run(
            [str(self.command), *arguments],
            env=self.environment(),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )
        said = [line for line in (done.stdout + done.stderr).splitlines() if "rror" in line or "subprocess" in line]
        assert done.returncode == 0, "\n".join(said)[-6000:]
        return done.stdout

    def start(self, dag: str, day: int, **parameters: Any) -> subprocess.Popen[bytes]:
        """Starts a run of a DAG, as `run` does, and does not wait for it."""
        with (self.folder / "airflow.log").open("wb") as log:
            return subprocess.Popen(
                [str(AIRFLOW), "dags", "test", "--conf", json.dumps(parameters), dag, f"2026-03-{day:02}"],
                env=self.environment(),
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )

    @contextmanager
    def training_half_way(self, day: int) -> Iterator[tuple[subprocess.Popen[bytes], psutil.Process]]:
        """Starts a training DAG, and gives Airflow and the job once there is a checkpoint; waits for Airflow's end."""
        checkpoints = self.folder / "checkpoints"
        before = set(checkpoints.glob("*/*/manifest.json"))
        airflow = self.start("lakelens_training", day)
        try:
            while set(checkpoints.glob("*/*/manifest.json")) <= before:
                assert airflow.poll() is None, (self.folder / "airflow.log").read_text()[-6000:]
                time.sleep(0.05)
            yield airflow, self.trainings()[0]
            airflow.wait(900)
        finally:
            airflow.kill()

    def run_states(self) -> Counter[str]:
        """How many MLflow runs there are in which state."""
        from lakelens.tracking.runs import open_client

        client = open_client(self.store)
        experiment = client.get_experiment_by_name("digits")
        runs = [] if experiment is None else client.search_runs([experiment.experiment_id])
        return Counter(run.info.status for run in runs)

    def trainings(self) -> list[psutil.Process]:
        """The processes of training jobs, each with those that it has started."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                words = process.cmdline()
                if "train" in words and any(str(self.folder / "checkpoints") in word for word in words):
                    found += [process, *process.children(recursive=True)]
        return found

    def run(self, dag: str, day: int, **parameters: Any) -> dict[str, Any]:
        """Runs a DAG to its end and gives each task's result; None for one that was skipped."""
        conf = ("--conf", json.dumps(parameters))
        self.airflow("dags", "test", *conf, dag, f"2026-03-{day:02}")
        return self.results(dag, day)

    def results(self, dag: str, day: int) -> dict[str, Any]:
        states = self.rows("select task_id, state from task_instance where dag_id = ? and run_id like ?", dag, day)
        assert {state for _, state in states} <= {"success", "skipped"}, states
        found = {task: None for task, _ in states}
        values = self.rows(
            "select task_id, value from xcom where dag_id = ? and run_id like ? and key = 'return_value'", dag, day
        )
        return {**found, **{task: json.loads(value) for task, value in values}}

    def rows(self, query: str, dag: str, day: int) -> list[Any]:
        with sqlite3.connect(self.home / "airflow.db") as database:
            return database.execute(query, (dag, f"%2026-03-{day:02}%")).fetchall()

    def _command(self) -> Path:
        """A command of this checkout, whatever is installed."""
        command = self.folder / "lakelens"
        if not command.exists():
            command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m lakelens.jobs.cli "$@"\n')
            command.chmod(0o755)
        return command


class ScheduledPipeline(Pipeline):
    """The same with Airflow 3, whose scheduler runs the DAGs in processes of its own."""

    command = AIRFLOW_3

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        super().__init__(folder)

    def environment(self) -> dict[str, str]:
        variables = {
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API_AUTH__JWT_SECRET": "of one test" * 6,
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{self.port}/execution/",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": "1",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": str(SILENT_S),
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
        }
        return {**super().environment(), **variables}

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Runs the parts of Airflow, each in a session of its own."""
        started = []
        try:
            for part in PARTS:
                with (self.folder / f"{part}.log").open("wb") as log:
                    command = [str(self.command), part]
                    started.append(
                        subprocess.Popen(
                            command,
                            env=self.environment(),
                            cwd=self.folder,
                            stdout=log,
                            stderr=log,
                            start_new_session=True,
                        )
                    )
            yield
        finally:
            all_parts = [psutil.Process(part.pid) for part in started if part.poll() is None]
            tree = [*all_parts, *(below for part in all_parts for below in part.children(recursive=True))]
            for process in tree:
                with suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(tree, timeout=60)

    def states(self) -> dict[str, tuple[str | None, int]]:
        """State and try of each task of the first run of the training."""
        query = "select run_id from dag_run where dag_id = 'lakelens_training' order by run_after limit 1"
        with sqlite3.connect(self.home / "airflow.db", timeout=60) as database:
            run = database.execute(query).fetchone() or ("",)
            found = database.execute("select task_id, state, try_number from task_instance where run_id = ?", run)
            return {task: (state, number) for task, state, number in found}

    def wait_for(self, met: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 600
        while not met():
            assert time.monotonic() < deadline, (what, self.states())
            time.sleep(0.2)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return Pipeline(tmp_path_factory.mktemp("pipeline"))


def test_the_first_run_trains_and_promotes_and_a_second_does_nothing_new(pipeline: Pipeline) -> None:
    early = pipeline.run("lakelens_scoring", 1)
    assert (early["champion"]["exists"], early["score"]) == (False, None)
    first = pipeline.run("lakelens_training", 1)
    assert set(first) == set(TRAINING_TASKS)
    assert (first["etl"]["version"], first["stale"]["stale"], first["train"]["version"]) == (0, True, 0)
    assert first["score"]["scored"] == first["evaluate"]["rows"] > 0
    assert (first["promote"]["promoted"], first["promote"]["version"]) == (True, 1)
    again = pipeline.run("lakelens_training", 2)
    assert (again["etl"]["version"], again["etl"]["stored"], again["stale"]["stale"]) == (0, 0, False)
    assert [again[task] for task in TRAINING_TASKS[3:]] == [None] * 4
    hourly = [pipeline.run("lakelens_scoring", day) for day in (3, 4)]
    assert hourly[0]["champion"]["version"] == 1
    assert hourly[0]["score"]["scored"] == early["etl"]["stored"] > 0
    assert (hourly[1]["score"]["scored"], hourly[1]["score"]["skipped"]) == (0, early["etl"]["stored"])


def test_a_task_whose_input_has_to_change_first_is_not_tried_again(pipeline: Pipeline) -> None:
    assert pipeline.start("lakelens_scoring", 8, source=str(pipeline.folder / "nowhere")).wait(600) != 0
    query = "select state, try_number from task_instance where dag_id = ? and run_id like ? and task_id = 'etl'"
    assert pipeline.rows(query, "lakelens_scoring", 8) == [("failed", 1)]


def test_a_training_that_is_killed_half_way_goes_on_in_the_retry_and_is_not_repeated_once_it_has_finished(
    pipeline: Pipeline,
) -> None:
    from lakelens.jobs.demo import deliver
    from lakelens.tracking.run_listing import show_run
    from lakelens.tracking.runs import open_client

    before = pipeline.run_states()
    if pipeline.images.arrivals.exists():
        deliver(pipeline.images)
    with pipeline.training_half_way(day=5) as (airflow, _):
        airflow.send_signal(signal.SIGTERM)  # as Airflow does to the process of a task that it stops
    # Airflow does not wait for the job that it has sent SIGTERM.
    psutil.wait_procs(pipeline.trainings(), timeout=60)
    assert pipeline.trainings() == []
    states = pipeline.rows("select task_id, state from task_instance where dag_id = ? and run_id like ?", *TRAINING_5)
    assert dict(states)["train"] == "up_for_retry"
    with pipeline.training_half_way(day=5) as (airflow, job):
        airflow.kill()  # as a worker of Airflow dies: the job lives on, or dies with the machine
        job.kill()
    psutil.wait_procs(pipeline.trainings(), timeout=60)
    with pipeline.training_half_way(day=5) as (_, job):
        job.terminate()  # the task fails, and is tried again in the same run
    results = pipeline.results(*TRAINING_5)
    assert results["train"]["version"] == results["etl"]["version"]
    assert results["evaluate"]["run_id"] == results["train"]["run_id"]
    tries = dict(
        pipeline.rows("select task_id, try_number from task_instance where dag_id = ? and run_id like ?", *TRAINING_5)
    )
    assert tries["train"] >= 2
    assert tries["score"] == 1
    assert pipeline.run_states() - before == {"FINISHED": 1}
    assert pipeline.trainings() == []
    run_id = results["train"]["run_id"]
    summary = show_run(run_id, pipeline.store).summary
    assert summary.job is not None
    assert (summary.job.rpartition("/train/")[0].split("/")[0], summary.attempt) == ("lakelens_training", 4)
    curve = open_client(pipeline.store).get_metric_history(run_id, "val_loss")
    assert [point.step for point in curve] == list(range(1, 31))
    # As when the task is cleared: it runs once more in the same run of the DAG.
    cleared = pipeline.airflow("tasks", "test", "lakelens_training", "train", summary.job.split("/")[1])
    assert f'"run_id": "{run_id}"' in cleared
    assert pipeline.run_states() - before == {"FINISHED": 1}


def test_a_class_whose_share_has_moved_is_a_reason_to_train_and_a_worse_model_is_not_promoted(
    pipeline: Pipeline,
) -> None:
    from lakelens.inference.model.registry import version_behind

    before = version_behind("digits", "champion", pipeline.store)
    assert before is not None
    for file in (pipeline.folder / "late").iterdir():
        file.rename(pipeline.late_folder / file.name)
    short = {"epochs": 1, "min_new_rows": 1000, "max_drift": 0.01}
    training = pipeline.run("lakelens_training", 7, **short)
    stale, promote = training["stale"], training["promote"]
    assert (stale["stale"], stale["new_rows"], stale["drifted_class"]) == (True, LATE_IMAGES, LATE_CLASS)
    assert f"fewer than 1000); the share of {LATE_CLASS!r} has moved by 0.0" in stale["reason"]
    assert stale["reason"].endswith("(more than 0.01)")
    assert training["train"]["version"] == training["etl"]["version"] == promote["version"] - 1
    assert training["evaluate"]["run_id"] == training["train"]["run_id"]
    assert training["evaluate"]["accuracy"] == promote["score"] < promote["previous_score"]
    assert (promote["promoted"], promote["previous"]) == (False, before.version)
    assert version_behind("digits", "champion", pipeline.store) == before


def test_the_retry_of_a_worker_of_airflow_3_that_was_killed_goes_on_with_its_training(tmp_path: Path) -> None:
    from lakelens.tracking.runs import open_client

    pipeline = ScheduledPipeline(tmp_path)
    with pipeline.at_work():

        def is_known() -> bool:
            return "lakelens_training" in pipeline.airflow("dags", "unpause", "-y", "lakelens_training")

        pipeline.wait_for(is_known, "the DAG to be read")  # and its last period begins
        manifests = pipeline.folder / "checkpoints"
        pipeline.wait_for(lambda: len([*manifests.glob("*/*/manifest.json")]) >= 2, "a second checkpoint")
        job = pipeline.trainings()[0]
        workers = [process for process in job.parents() if process.name().startswith("airflow worker")]
        assert workers
        for process in (*workers, job):  # as their machine dies
            process.kill()
        pipeline.wait_for(lambda: pipeline.states()["train"] == ("success", 2), "the retry to succeed")
        (run,) = open_client(pipeline.store).search_runs(["1"], "tags.`lakelens.job` LIKE '%/train/-1'")
        curve = open_client(pipeline.store).get_metric_history(run.info.run_id, "val_loss")
        assert [point.step for point in curve] == list(range(1, pipeline.parameters["epochs"] + 1))
        assert pipeline.run_states() == {"FINISHED": 1}
        pipeline.wait_for(lambda: pipeline.states()["promote"][0] == "success", "the DAG's end")
        dates = ("-s", "2020-01-01", "-e", "2100-01-01")  # without them Airflow 3 clears nothing
        pipeline.airflow("tasks", "clear", "-y", "-t", "train", *dates, "lakelens_training")
        pipeline.wait_for(lambda: pipeline.states()["train"] == ("success", 3), "the cleared task")
        assert pipeline.run_states() == {"FINISHED": 1}


@pytest.mark.parametrize("variable", ["LAKELENS_AIRFLOW", "LAKELENS_AIRFLOW3"])
def test_airflow_2_and_3_fill_every_template(variable: str, tmp_path: Path) -> None:
    parameters = {"source": "/photos of 'birds'", "table": "/tables/birds"}
    store = "http://tracking:5000"
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "jobs" / "airflow"),
        "LAKELENS_PARAMETERS": json.dumps({**parameters, "tracking_uri": store}),
    }
    python = Path(os.environ[variable]) / "bin" / "python"
    command = [str(python), str(Path(__file__).with_name("filled_templates.py"))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    words = [shlex.split(found[f"lakelens_training.{name}"]["bash_command"]) for name in ("etl", "score")]
    export = ["export", f"MLFLOW_TRACKING_URI={store};"]
    assert words[0][:7] == [*export, "exec", "lakelens", "etl", *parameters.values()]
    assert words[1][4:6] == ["score", "runs:/value of train.run_id"]
    keys = [f"lakelens_training/a run/{name}/-1" for name in ("etl", "score")]
    assert [given[-2:] for given in words] == [["--job", key] for key in keys]
    evaluate = shlex.split(found["lakelens_training.evaluate"]["bash_command"])
    assert "--job" not in evaluate  # safe to repeat without
