"""DAGs of the lakelens pipeline: training each night if the data has changed, scoring each hour.

Each step (`lakelens_steps.py`) is the `lakelens` command on the worker's machine. LAKELENS_COMMAND names the command if
it is not on the PATH, as in `/opt/lakelens/bin/lakelens`, or a script that calls `spark-submit`.

LAKELENS_PARAMETERS is a JSON object of values instead of the steps' defaults; a run may have others still.

Runs with Airflow 2.10 to 3. Every task can be tried again: its id is the key of its job (`--job`). A retry follows a
training that outlived its task, or resumes it from its last checkpoint; a task that is cleared after it has succeeded
returns the same result. A task that Airflow ends pauses its training.
"""

from __future__ import annotations

import datetime
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent))  # not every reader of DAGs imports from their folder

from airflow.exceptions import AirflowFailException, AirflowSkipException
from lakelens_steps import DEFAULTS, SCORING, TRAINING, Step

try:
    from airflow.providers.standard.operators.bash import BashOperator
    from airflow.providers.standard.operators.python import ShortCircuitOperator
    from airflow.sdk import DAG
except ImportError:  # Airflow 2
    from airflow import DAG
    from airflow.operators.bash import BashOperator
    from airflow.operators.python import ShortCircuitOperator

COMMAND = os.environ.get("LAKELENS_COMMAND", "lakelens")
PARAMETERS = {**DEFAULTS, **json.loads(os.environ.get("LAKELENS_PARAMETERS", "{}"))}
# One for each task of each run of a DAG, the same for all of its tries.
JOB = "{{ (dag.dag_id ~ '/' ~ run_id ~ '/' ~ ti.task_id ~ '/' ~ ti.map_index) | shell_quoted }}"
TASK = {
    "retries": int(os.environ.get("LAKELENS_RETRIES", "2")),
    "retry_delay": datetime.timedelta(seconds=float(os.environ.get("LAKELENS_RETRY_DELAY_S", "60"))),
}


class JobOperator(BashOperator):
    """Runs the lakelens command; where the input or the configuration has to change first, it is not tried again."""

    def __init__(self, **options: Any) -> None:
        super().__init__(skip_on_exit_code=2, **options)

    def execute(self, context: Any) -> Any:
        """Runs it and returns its result."""
        try:
            return super().execute(context)
        except AirflowSkipException as error:
            raise AirflowFailException("exit code 2: the input or the configuration has to change first") from error


def task_of(step: Step) -> BashOperator:
    """Makes a task of a step that runs the lakelens command; its last line is the result."""
    words = step.filled(
        lambda name: f"' ~ params.{name} ~ '", lambda task, key: f"' ~ ti.xcom_pull(task_ids='{task}')['{key}'] ~ '"
    )
    # Quoted once it is filled: a parameter is one argument whatever it holds.
    arguments = " ".join(f"{{{{ ('{word}') | shell_quoted }}}}" for word in words)
    if step.is_job:
        arguments += f" --job {JOB}"
    # Without the parameter the worker's own variable counts, which an empty one would hide.
    store = (
        "{% if params.tracking_uri %}export MLFLOW_TRACKING_URI={{ params.tracking_uri | shell_quoted }}; {% endif %}"
    )
    return JobOperator(
        task_id=step.name,
        # In the shell's place, so that what ends the task ends the job.
        bash_command=f"{store}exec {shlex.quote(COMMAND)} {arguments}",
        output_processor=json.loads,
    )


def is_true(step: str, key: str, ti: Any = None) -> bool:
    """Returns whether a value of an earlier task's result is true."""
    return bool(ti.xcom_pull(task_ids=step)[key])


def pipeline(name: str, schedule: str, steps: tuple[Step, ...]) -> DAG:
    """Makes a DAG of steps."""
    with DAG(
        dag_id=name,
        description="lakelens: images to versions, models and predictions",
        schedule=schedule,
        start_date=datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc),
        catchup=False,
        max_active_runs=1,
        default_args=TASK,
        params=PARAMETERS,
        tags=["lakelens"],
        user_defined_filters={"shell_quoted": lambda value: shlex.quote(str(value))},
    ) as dag:
        tasks: dict[str, Any] = {}
        for step in steps:
            tasks[step.name] = task_of(step)
            before = [tasks[one] for one in step.after]
            if step.only_if is not None:
                one, _, key = step.only_if.partition(".")
                gate = ShortCircuitOperator(
                    task_id=f"if_{one}", python_callable=is_true, op_kwargs={"step": one, "key": key}
                )
                before >> gate >> tasks[step.name]
            elif before:
                before >> tasks[step.name]
    return dag


training = pipeline("lakelens_training", "@daily", TRAINING)
scoring = pipeline("lakelens_scoring", "@hourly", SCORING)
