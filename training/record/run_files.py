"""The result files of a finished run: the task's evaluation, TensorBoard."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import InvalidArgumentError, MissingDependencyError
from ...tracking.requests import ChildRuns
from ...tracking.run_listing import get_run, open_existing_store
from ...tracking.run_writer import RunWriter
from ...tracking.runs import SEARCH_TAG, RunReference, as_tracking_errors
from ..segments.evaluation import EVALUATION_FILE, PICTURES_FOLDER, read_counts
from ..tasks.task import Task

if TYPE_CHECKING:
    from mlflow import MlflowClient

logger = logging.getLogger(__name__)

VALIDATION_ARTIFACT, TENSORBOARD_ARTIFACT = "validation", "tensorboard"
# Metrics of a run that are not metrics of its model.
_NO_CURVES = ("best_", "system/", "epoch_seconds", "images_per_second", "feed_wait_seconds_", "compute_seconds_")

History = Mapping[str, Sequence[tuple[int, float, int]]]


def log_run_files(writer: RunWriter, task: Task, folder: Path) -> None:
    """Writes the files into the run, after its metrics; without matplotlib it leaves out the plots, with a warning."""
    writer.log_files(validation_files(task, folder))
    pictures = folder / PICTURES_FOLDER
    if pictures.exists():
        place = f"{VALIDATION_ARTIFACT}/{PICTURES_FOLDER}"
        writer.add(lambda client, run_id: client.log_artifacts(run_id, str(pictures), place))
    writer.add(_log_history)
    writer.add(lambda _client, _run_id: (folder / EVALUATION_FILE).unlink(missing_ok=True))


def validation_files(task: Task, folder: Path) -> dict[str, bytes]:
    """Makes the evaluation files of a task: contents by path; empty if nothing was counted."""
    counts = read_counts(folder)
    if not counts:
        return {}
    evaluation = task.evaluate(counts)
    files = {f"{VALIDATION_ARTIFACT}/{name}": text.encode() for name, text in evaluation.tables.items()}
    for name, draw in evaluation.plots.items():
        try:
            files[f"{VALIDATION_ARTIFACT}/{name}"] = draw()
        except MissingDependencyError as error:
            logger.warning("the run gets no %s: %s", name, error)
    return files


def write_run_logs(run_ids: Sequence[str], folder: Path, *, tracking_uri: str | None = None) -> list[str]:
    """Writes TensorBoard's events of runs into a folder, from the metrics that they have recorded so far."""
    uri, client = open_existing_store(tracking_uri)
    written = []
    with as_tracking_errors(uri, "read the metrics of runs"):
        for run_id in run_ids:
            run = get_run(client, run_id)
            parent = RunReference(uri, run.info.experiment_id, run.info.run_id, created_on="")
            trials = ChildRuns(parent).known().values() if SEARCH_TAG in run.data.tags else [parent]
            for one in trials:
                history = _history_of(client, one.run_id)
                if history:
                    name = client.get_run(one.run_id).info.run_name or ""
                    write_tensorboard_events(folder / f"{name.replace('/', '-')} {one.run_id[:8]}".strip(), history)
                    written.append(one.run_id)
    if not written:
        raise InvalidArgumentError(f"no metric has been recorded yet for {', '.join(run_ids)}")
    return written


def _log_history(client: MlflowClient, run_id: str) -> None:
    history = _history_of(client, run_id)
    if not history:
        return
    with tempfile.TemporaryDirectory(prefix="lakelens-metrics-") as place:
        write_tensorboard_events(Path(place, TENSORBOARD_ARTIFACT), history)
        client.log_artifacts(run_id, place)


def _history_of(client: MlflowClient, run_id: str) -> History:
    names = [name for name in client.get_run(run_id).data.metrics if not name.startswith(_NO_CURVES)]
    return {
        name: [(point.step, point.value, point.timestamp) for point in client.get_metric_history(run_id, name)]
        for name in sorted(names)
    }


def write_tensorboard_events(folder: Path, history: History) -> None:
    """Writes metrics as Keras' TensorBoard callback does: runs `train` and `validation`, names `epoch_<metric>`."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        # TensorBoard's EventFileWriter would import TensorFlow.
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError as error:
        logger.warning("the run gets no files for TensorBoard: %s", error)
        return
    for run, of_validation in {"train": False, "validation": True}.items():
        points = [
            (step, name.removeprefix("val_"), value, time_ms / 1000)
            for name, values in history.items()
            if name.startswith("val_") == of_validation
            for step, value, time_ms in values
        ]
        if not points:
            continue
        (folder / run).mkdir(parents=True)
        began = min(time_s for *_, time_s in points)
        with (folder / run / f"events.out.tfevents.{began:.0f}.lakelens").open("wb") as file:
            records = RecordWriter(file)
            records.write(Event(wall_time=began, file_version="brain.Event:2").SerializeToString())
            for step, name, value, time_s in sorted(points):
                summary = Summary(value=[Summary.Value(tag=f"epoch_{name}", simple_value=value)])
                records.write(Event(wall_time=time_s, step=step, summary=summary).SerializeToString())
