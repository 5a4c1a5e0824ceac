"""Rules of training a detector: it learns, measures alike on any number of ranks, and continues exactly."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest
from boxed_tables import HEIGHT, WIDTH, boxed_table
from PIL import Image
from segment_jobs import history, in_a_new_process, job_in

from lakelens.errors import NotAnImageTableError, TrialError
from lakelens.tracking.run_writer import read_records
from lakelens.training.checkpoints.warm_start import WarmStart
from lakelens.training.experiment.train import train
from lakelens.training.feed.feed import DeltaFeed
from lakelens.training.record.run_files import validation_files
from lakelens.training.segments.evaluation import PICTURES_FOLDER
from lakelens.training.segments.job import TrainingJob
from lakelens.training.segments.outcome import SegmentOutcome
from lakelens.training.segments.segment import train_segment
from lakelens.training.trials.entrypoint import EntryPoint

pytestmark = pytest.mark.tensorflow
ENTRY = EntryPoint.parse("lakelens.training.trials.detector:Detector")
EPOCHS = 5


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("detection")
    boxed_table(folder / "scenes")
    return folder


def job_of(place: Path, name: str, **changes) -> TrainingJob:
    feeds = {
        "training_feed": DeltaFeed(place / "scenes", 0, "train", 1, label_column=None),
        "validation_feed": DeltaFeed(place / "scenes", 0, "validation", shuffle=False, label_column=None),
    }
    keys = {
        "task": "detection",
        "epochs": EPOCHS,
        "image_size": (HEIGHT, WIDTH),
        "global_batch_size": 8,
        "hyperparameters": {"learning_rate": 3e-3, "width": 16, "colour": 0.1},
        "searcher": {"metric": "val_map50"},
    }
    return job_in(place / name, place / "scenes", ENTRY, **feeds, **(keys | changes))


@pytest.fixture(scope="module")
def whole(place) -> tuple[TrainingJob, SegmentOutcome]:
    job = job_of(place, "whole")
    outcome = in_a_new_process(job)
    outcome.raise_failure()
    return job, outcome


def test_a_detector_trains_on_boxes_and_its_run_gets_each_class_and_the_curves(place):
    job = job_of(place, "an epoch", epochs=1)
    outcome = train_segment(job)
    outcome.raise_failure()
    assert 0 <= outcome.metrics["val_map"] <= outcome.metrics["val_map50"] <= 1
    (pictured,) = (job.folder / PICTURES_FOLDER).iterdir()
    assert pictured.name == "step-00000012.jpg"
    with Image.open(pictured) as picture:
        assert picture.size == (4 * 256, 2 * 202)
    files = validation_files(job.config.make_task(), job.folder)
    per_class = list(csv.DictReader(io.StringIO(files["validation/per_class.csv"].decode())))
    assert [row["class"] for row in per_class] == ["green", "red"]
    mean = sum(float(row["ap50"]) for row in per_class) / 2
    assert mean == pytest.approx(outcome.metrics["val_map50"], abs=1e-5)
    assert files["validation/precision_recall.png"].startswith(b"\x89PNG")
    assert files["validation/precision_recall.csv"].startswith(b"class,score,recall,precision\n")


@pytest.mark.long
def test_a_detector_learns_from_boxes(whole):
    _, outcome = whole
    assert outcome.metrics["val_map50"] > 0.5
    assert 0 < outcome.metrics["val_map"] <= outcome.metrics["val_map50"]


@pytest.mark.long
@pytest.mark.horovod
def test_the_metrics_do_not_depend_on_the_number_of_ranks(place, whole):
    step = {"searcher": {"metric": "val_map50", "max_length": {"batches": 1}}}
    job = job_of(place, "on 2", **step, perform_initial_validation=True)
    job = replace(job, warm_start=WarmStart("the whole", Path(whole[1].last)))
    in_a_new_process(job, ranks=2).raise_failure()
    (first,) = [record.metrics for record in read_records(job.folder) if record.metrics and record.step == 0]
    last = history(whole[0])[-1]
    names = [f"val_{name}" for name in job.config.make_task().metric_names]
    assert {name: first[name] for name in names} == {name: last[name] for name in names}


def test_a_table_without_boxes_is_refused_with_its_column_and_the_layouts(tmp_path):
    from coloured_tables import coloured_table

    with pytest.raises(NotAnImageTableError, match=r"boxes from column 'annotations', and the table has no\b"):
        train({"task": "detection", "data": {"table": str(coloured_table(tmp_path / "squares"))}})


def test_a_detector_for_another_task_is_refused(place):
    with pytest.raises(TrialError, match=r"Detector trains on boxes, and the experiment's task is classification"):
        train_segment(job_of(place, "no boxes", task="classification", searcher={})).raise_failure()
