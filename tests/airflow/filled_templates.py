"""Reads the DAGs as Airflow does and fills the templates of every task; runs in Airflow's environment."""

from __future__ import annotations

import json
import os
from typing import Any

from airflow.models.dagbag import DagBag


class TaskInstance:
    """What templates ask of a task instance: its id, and results of tasks before."""

    map_index = -1

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id

    def xcom_pull(self, task_ids: str) -> Any:
        class Result(dict):
            def __missing__(self, key: str) -> str:
                return f"value of {task_ids}.{key}"

        return Result()


bag = DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"], include_examples=False)
if bag.import_errors:
    raise SystemExit(str(bag.import_errors))
filled = {}
for name, dag in bag.dags.items():
    for task in dag.tasks:
        params = {key: getattr(value, "value", value) for key, value in dag.params.items()}
        context = {"params": params, "ti": TaskInstance(task.task_id), "dag": dag, "run_id": "a run", "task": task}
        task.render_template_fields(context)
        filled[f"{name}.{task.task_id}"] = {"bash_command": getattr(task, "bash_command", None)}
print(json.dumps(filled, default=str))
