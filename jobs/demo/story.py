"""The story of a demo: the parts that all demos share, and the demo of two versions of a table.

Real parts on one machine: a two-executor Spark, or the Spark Connect server that SPARK_REMOTE names; Delta tables, two
Horovod ranks, MLflow. A first version of the table under-represents one class; new images arrive and become a second
version; a model is trained on each; both are scored on the same held-out images; and the first version is still there,
row for row.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakelens.jobs.demo.images import DemoImages, deliver, link_own, write_digits
from lakelens.jobs.demo.steps import Story
from lakelens.spark.java import SHORT_LIVED
from lakelens.spark.jvm import VERBOSE_VARIABLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakelens.etl.image_table import ImageTable
    from lakelens.etl.ingest.run import IngestResult
    from lakelens.inference.evaluation.result import EvaluationResult
    from lakelens.training.experiment.run_trial import TrainResult

MASTER = "local-cluster[2,1,2048]"
RANKS = 2
SPLITS = {"train": 0.7, "validation": 0.1, "test": 0.2}
# The Trial, by framework.
TRIALS = {
    "keras": "lakelens.training.trials.small_cnn:SmallCnn",
    "torch": "lakelens.training.trials.torch_small_cnn:TorchSmallCnn",
}
# Both trainings are this file, each with --set data.version=N.
EXPERIMENT = """\
name: digits
entrypoint: {entrypoint}
data:
  table: {table}
  version: latest
hyperparameters:
  global_batch_size: {global_batch_size}
searcher:
  name: single
  metric: val_loss
  max_length: {{epochs: {epochs}}}
resources: {{slots_per_trial: {ranks}, strategy: horovod_cluster}}
checkpoint_storage: {{path: {checkpoints}}}
tracking: {{uri: {tracking_uri}, experiment: lakelens-demo}}
"""


class Demo:
    """The story's parts and what they share: the folder, the session, the table, the clock."""

    steps = 10
    master = MASTER
    template = EXPERIMENT

    def __init__(self, args: argparse.Namespace, out: Path) -> None:
        self.args = args
        self.out = out
        self.story = Story(self.steps)
        self.spark: SparkSession | None = None
        # A Spark Connect server has a cluster and settings of its own.
        self.server = os.environ.get("SPARK_REMOTE", "")
        self.tracking_uri = f"sqlite:///{out / 'mlflow.db'}"
        self.predictions = str(out / "tables" / "predictions")
        self.experiment = out / "experiment.yaml"

    def tell(self) -> dict[str, Any]:
        """Runs the ten steps."""
        images = self._prepare_images()
        table = self._open_table()
        first = self._ingest(table, images, "ingest_0", "Ingest: version 0")
        rows_of_first = _rows(table, first.version)
        model_0 = self._train(first.version, "train_0")
        with self.story.step("arrivals", f"New images of {images.held_back!r} arrive"):
            deliver(images)
            print(f"{images.late_files} files moved into {images.source}")
        second = self._ingest(table, images, "ingest_1", "Ingest again: version 1, and only the new files are read")
        model_1 = self._train(second.version, "train_1")
        self._score(table, second.version, (model_0, model_1))
        found = self._show(table, second.version, (model_0, model_1), images.held_back)
        with self.story.step("time_travel", f"Back to version {first.version}"):
            same = _rows(table, first.version) == rows_of_first
            verdict = "every one as it was before the new images came" if same else "AND THEY ARE NOT those of before"
            print(f"version {first.version} has {len(rows_of_first)} rows, {verdict}")
        self._closing_words(table)
        changes = [] if found.comparison is None else found.comparison.classes
        held_back = next(one for one in changes if one.name == images.held_back)
        return {
            "versions": [first.version, second.version],
            "runs": [model_0.run_id, model_1.run_id],
            "rows": [_counts(first), _counts(second)],
            "class": images.held_back,
            "recall_before": held_back.recall_before,
            "recall_after": held_back.recall_after,
            "most_improved_class": None if found.comparison is None else found.comparison.most_improved_class,
            "accuracy_before": None if found.other is None else found.other.scores["accuracy"],
            "accuracy_after": found.evaluation.scores["accuracy"],
            "predictions": self._predictions_summary(),
            "version_0_unchanged": same,
            "seconds": self.story.times(),
            "exit_code": 0 if same else 1,
        }

    @property
    def session(self) -> SparkSession:
        """The Spark session, started on first use."""
        if self.spark is None:
            from lakelens.spark.session import spark_session

            settings = {
                "spark.sql.warehouse.dir": str(self.out / "warehouse"),
                "spark.driver.extraJavaOptions": SHORT_LIVED,
                "spark.executor.extraJavaOptions": SHORT_LIVED,
            }
            with _output_of_children_to(self.out / "spark.log"):
                self.spark = (
                    spark_session()
                    if self.server
                    else spark_session(self.master, app_name="lakelens demo", conf=settings)
                )
        return self.spark

    @property
    def master_flag(self) -> str:
        """The flag with which a command starts the same Spark."""
        return "" if self.server else f' --master "{self.master}"'

    def close(self) -> None:
        """Stops Spark."""
        if self.spark is not None:
            self.spark.stop()
            self.spark = None

    def _prepare_images(self) -> DemoImages:
        own: Path | None = self.args.images
        title = "Images: scanned digits, written as JPEG files in class folders" if own is None else f"Images of {own}"
        with self.story.step("images", title):
            images = write_digits(self.out) if own is None else link_own(own, self.out, self.args.limit_per_class)
            print(f"{images.files} files in {images.source}")
            if images.broken:
                print(f"{len(images.broken)} of them are broken on purpose")
            print(f"class {images.held_back!r} is nearly missing: {images.late_files} of its images come later")
        return images

    def _open_table(self) -> ImageTable:
        from lakelens.etl.image_table import ImageTable

        with self.story.step("spark", f"Spark on {self.server or self.master}, and Delta Lake"):
            version = self.session.version
            print(f"Spark {version}" if self.server else f"Spark {version}; its log: {self.out / 'spark.log'}")
        table = ImageTable(self.session, str(self.out / "tables" / "images"))
        text = self.template.format(
            entrypoint=TRIALS[self.args.framework],
            table=json.dumps(table.location),
            global_batch_size=self.args.global_batch_size,
            epochs=self.args.epochs,
            ranks=RANKS,
            checkpoints=json.dumps(str(self.out / "checkpoints")),
            tracking_uri=json.dumps(self.tracking_uri),
        )
        self.experiment.write_text(text, encoding="utf-8")
        return table

    def _ingest(self, table: ImageTable, images: DemoImages, key: str, title: str) -> IngestResult:
        with self.story.step(key, title):
            result = table.ingest(images.source, layout="class_folders", size=self.args.size, splits=SPLITS)
            print(
                f"{result.rows_in} files in = {result.stored} stored + {result.quarantined} quarantined "
                f"+ {result.skipped} known and unchanged"
            )
            if result.quarantined:
                for file in table.quarantine().files:
                    print(f"quarantined: {Path(file.path).name}: {file.reason}")
        return result

    def _train(self, version: int, key: str) -> TrainResult:
        from lakelens.training.configuration.experiment import ExperimentConfig
        from lakelens.training.experiment.train import train

        with self.story.step(key, f"Train on version {version}: {RANKS} ranks as Spark barrier tasks"):
            changes = [f"data.version={version}", f"name=version {version}"]
            print(f"{self.experiment} with --set {changes[0]}")
            result = train(ExperimentConfig.read(self.experiment, changes), spark=self.session)
            shown = ", ".join(f"{name} {value:.3f}" for name, value in sorted(result.metrics.items()))
            print(f"run {result.run_id}\n{shown}")
        return result

    def _score(self, table: ImageTable, version: int, models: tuple[TrainResult, TrainResult]) -> None:
        from lakelens.inference.scoring.score import score

        with self.story.step("score", f"Score both models on the same images: split test of version {version}"):
            for model in models:
                scored = score(
                    self.session,
                    f"runs:/{model.run_id}",
                    table.location,
                    self.predictions,
                    version,
                    split="test",
                    tracking_uri=self.tracking_uri,
                )
                print(f"model of version {model.version}: {scored.scored} rows scored, {scored.errors} errors")

    def _show(
        self, table: ImageTable, version: int, models: tuple[TrainResult, TrainResult], held_back: str
    ) -> EvaluationResult:
        from lakelens.jobs.run_lines import recall_lines

        with self.story.step("result", "What the data version changed"):
            found = self._evaluate(table, version, models)
            if found.comparison is not None and found.other is not None:
                print("\n".join(recall_lines(found.comparison.classes, held_back)))
                then, now = (one.scores["accuracy"] for one in (found.other, found.evaluation))
                print(f"accuracy on all held-out images: {then:.3f} -> {now:.3f}")
                print(f"the class that gained most from the new data: {found.comparison.most_improved_class}")
            print(f"page: {found.page}")
        return found

    def _evaluate(self, table: ImageTable, version: int, models: tuple[TrainResult, TrainResult]) -> EvaluationResult:
        """Evaluates the second model against the first, by the predictions of both."""
        from lakelens.inference.evaluation.evaluate import evaluate

        before, after = models
        return evaluate(
            self.session,
            f"runs:/{after.run_id}",
            table.location,
            version,
            compare=f"runs:/{before.run_id}",
            predictions=self.predictions,
            out=self.out / "evaluation",
            tracking_uri=self.tracking_uri,
        )

    def _predictions_summary(self) -> dict[str, Any]:
        from lakelens.table import Table

        snapshot = Table.of(self.predictions).snapshot()
        return {"path": self.predictions, "version": snapshot.version, "rows": snapshot.rows}

    def _closing_words(self, table: ImageTable) -> None:
        print(
            f"""
The model did not change, the code did not change: the data version did. Each run is pinned to its version, so it can be
trained again on exactly those rows, today or next year.

  everything is in      {self.out}   (delete the folder to undo the demo)
  train again           lakelens train {self.experiment} --set data.version=0{self.master_flag}
  look at the runs      mlflow ui --backend-store-uri {self.tracking_uri}
  look at the page      {self.out / "evaluation" / "evaluation.html"}
  read version 0        spark.read.format("delta").option("versionAsOf", 0).load("{table.location}")
""",
            flush=True,
        )


def _rows(table: ImageTable, version: int) -> set[tuple[str, str, str]]:
    """Reads what identifies each row of a version: its source, the source's content, and its split."""
    rows = table.read(version).select("path", "content_hash", "split").collect()
    return {(row.path, row.content_hash, row.split) for row in rows}


def _counts(result: IngestResult) -> dict[str, int]:
    return {
        "in": result.rows_in,
        "stored": result.stored,
        "quarantined": result.quarantined,
        "skipped": result.skipped,
    }


@contextmanager
def _output_of_children_to(log: Path) -> Iterator[None]:
    """Sends what processes started in the body print to a file, for as long as they live.

    Spark's JVM inherits the file descriptors, so a redirect in Python's own streams would not reach it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    verbose = os.environ.get(VERBOSE_VARIABLE, "")
    os.environ[VERBOSE_VARIABLE] = "1"  # else the JVM's words would come to this process
    with log.open("ab") as file:
        try:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            yield
        finally:
            os.environ[VERBOSE_VARIABLE] = verbose
            os.dup2(kept[0], 1)
            os.dup2(kept[1], 2)
            os.close(kept[0])
            os.close(kept[1])
