"""The steps of the pipeline, said once; `lakelens_dags.py` makes operators of them.

A step is a lakelens command with places: `<table>` is a parameter of the DAG, `<etl.version>` a value of an earlier
step's result. This file imports nothing but Python: Airflow does not need lakelens in its own environment.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# What a run is started with; the web page of a DAG asks for them.
DEFAULTS: dict[str, Any] = {
    "source": "/data/photos",
    "table": "/data/tables/photos",
    "predictions": "/data/tables/predictions",
    "candidates": "/data/tables/candidates",
    "model": "photos",
    "experiment": "photos",
    "trial": "lakelens.training.trials.small_cnn:SmallCnn",
    "metric": "accuracy",
    "size": 299,
    "slots_per_trial": 1,
    "strategy": "auto",
    "epochs": 10,
    "global_batch_size": 64,
    "min_new_rows": 100,
    "max_drift": 0.1,
    "checkpoints": "/data/checkpoints",
    "reports": "/data/reports",
    # Where it is empty, MLFLOW_TRACKING_URI of the worker's own environment counts.
    "tracking_uri": "",
}
_PLACE = re.compile(r"<(\w+)(?:\.(\w+))?>")


@dataclass(frozen=True)
class Step:
    """One task."""

    name: str  # Its id
    arguments: tuple[str, ...]  # The lakelens command, with places
    after: tuple[str, ...] = ()  # The steps that it waits for
    # A value of an earlier step, as `step.key`, that must be true; else this step and those after it are skipped
    only_if: str | None = None
    # Whether the command takes --job: a retry resumes where the task stopped, and a cleared task repeats no work
    is_job: bool = True

    def filled(self, parameter: Callable[[str], str], value: Callable[[str, str], str]) -> list[str]:
        """Fills the places."""

        def written(place: re.Match[str]) -> str:
            name, key = place.groups()
            return parameter(name) if key is None else value(name, key)

        return [_PLACE.sub(written, argument) for argument in self.arguments]


ETL = Step("etl", ("etl", "<source>", "<table>", "--size", "<size>"))

# New images become a version. When enough has changed since the last training, a model is trained on that version and
# scored on its test split, and becomes the champion only if it is better than the one before on the same rows.
TRAINING = (
    ETL,
    Step(
        "stale",
        (
            *("models", "stale", "<model>", "<table>@<etl.version>"),
            *("--min-new-rows", "<min_new_rows>", "--max-drift", "<max_drift>"),
        ),
        after=("etl",),
        is_job=False,
    ),
    Step(
        "train",
        (
            *("train", "<table>@<etl.version>", "--entrypoint", "<trial>"),
            *("--slots-per-trial", "<slots_per_trial>", "--strategy", "<strategy>"),
            *("--epochs", "<epochs>", "--global-batch-size", "<global_batch_size>"),
            *("--set", "tracking.experiment=<experiment>", "--set", "checkpoint_storage.path=<checkpoints>"),
        ),
        after=("stale",),
        only_if="stale.stale",
    ),
    Step(
        "score",
        ("score", "runs:/<train.run_id>", "<table>@<etl.version>", "<candidates>", "--split", "test"),
        after=("train",),
    ),
    Step(
        "evaluate",
        (
            *("evaluate", "runs:/<train.run_id>", "<table>@<etl.version>"),
            *("--predictions", "<candidates>", "--out", "<reports>/<train.run_id>"),
        ),
        after=("score",),
        is_job=False,
    ),
    Step(
        "promote",
        (
            *("models", "promote", "runs:/<train.run_id>", "<model>", "--alias", "champion"),
            *("--if-better", "<metric>", "--on", "<table>@<etl.version>", "--predictions", "<candidates>"),
        ),
        after=("evaluate",),
    ),
)

# New images become a version, and the champion, once there is one, scores what it has not scored before.
SCORING = (
    ETL,
    Step("champion", ("models", "exists", "<model>", "champion"), after=("etl",), is_job=False),
    Step(
        "score",
        ("score", "models:/<model>@champion", "<table>@<etl.version>", "<predictions>"),
        after=("champion",),
        only_if="champion.exists",
    ),
)
