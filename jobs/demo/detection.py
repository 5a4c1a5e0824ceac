"""The demo of object detection (`lakelens demo --detection`): what a version changes that brings a missing class."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakelens.etl.files.walk import local_path
from lakelens.jobs.demo.digit_scenes import DigitScenes, write_voc
from lakelens.jobs.demo.images import DIGIT_NAMES
from lakelens.jobs.demo.story import Demo

if TYPE_CHECKING:
    from lakelens.etl.image_table import ImageTable
    from lakelens.etl.ingest.run import IngestResult
    from lakelens.inference.evaluation.detection_metrics import DetectionChange
    from lakelens.training.experiment.run_trial import TrainResult

# Few classes, so that a training of a minute has many objects of each.
SHOWN, HELD_BACK = ("two", "four", "seven"), "seven"
FIRST, LATE, VALIDATION, HELD_OUT = 360, 240, 40, 80
# How often the held-back class is drawn, compared with one of the others.
RARE, EQUAL, OFTEN = 0.005, 1.0, 4.0
EXPERIMENT = """\
name: digits on photographs
task: detection
entrypoint: lakelens.training.trials.detector:Detector
data: {{table: {table}, version: latest}}
hyperparameters:
  global_batch_size: {global_batch_size}
  learning_rate: 2e-3
  width: 32      # of pyramid and head; half of the default is enough for three classes
  flip: false    # a mirrored digit is another sign
searcher:
  metric: val_map50
  max_length: {{epochs: {epochs}}}
min_validation_period: {{epochs: {epochs}}}
resources: {{slots_per_trial: {ranks}, strategy: horovod_cluster}}
checkpoint_storage: {{path: {checkpoints}}}
tracking: {{uri: {tracking_uri}, experiment: lakelens-demo}}
"""


def scenes_of(seed: int, side: int, of_held_back: float, *, held_out: bool = False) -> DigitScenes:
    """Draws scenes of the three classes."""
    chance = [(of_held_back if name == HELD_BACK else 1.0) * (name in SHOWN) for name in DIGIT_NAMES]
    return DigitScenes(held_out=held_out, seed=seed, side=side, chance=chance)


class DetectionDemo(Demo):
    """Two versions of a table of scenes, a detector trained on each, and the way back from a wrong box."""

    template = EXPERIMENT

    def tell(self) -> dict[str, Any]:
        """Runs the ten steps."""
        source, arrivals = self.out / "scenes", self.out / "arrivals"
        self._write_scenes(source)
        table = self._open_table()
        first = self._ingest_scenes(table, source, "ingest_0", "Ingest: version 0")
        model_0 = self._train(first.version, "train_0")
        with self.story.step("arrivals", f"New scenes with many of {HELD_BACK!r} arrive"):
            write_voc(arrivals, scenes_of(4, self.args.size, OFTEN), LATE, "train", DIGIT_NAMES.__getitem__)
            print(f"{LATE} scenes in {arrivals}")
        second = self._ingest_scenes(table, arrivals, "ingest_1", "Ingest them: version 1")
        model_1 = self._train(second.version, "train_1")
        self._score(table, second.version, (model_0, model_1))
        held_back = self._show_precision(table, second.version, (model_0, model_1))
        wrong = self._trace_wrong_box(table, second.version, model_0)
        print(
            f"""
  look at the boxes     {self.out / "evaluation" / "evaluation.html"}
  look at the wrong box {wrong["picture"]}
  look at the runs      mlflow ui --backend-store-uri {self.tracking_uri}
  train again           lakelens train {self.experiment} --set data.version=0{self.master_flag}
""",
            flush=True,
        )
        return {
            "versions": [first.version, second.version],
            "runs": [model_0.run_id, model_1.run_id],
            "class": HELD_BACK,
            "ap50_before": held_back.ap50_before,
            "ap50_after": held_back.ap50_after,
            "predictions": self._predictions_summary(),
            "wrong_box": wrong,
            "seconds": self.story.times(),
        }

    def _write_scenes(self, source: Path) -> None:
        side, name_of = self.args.size, DIGIT_NAMES.__getitem__
        with self.story.step("images", "Images: scanned digits pasted on photographs, with boxes as Pascal VOC"):
            write_voc(source, scenes_of(1, side, RARE), FIRST, "train", name_of)
            write_voc(source, scenes_of(2, side, EQUAL, held_out=True), VALIDATION, "val", name_of)
            write_voc(source, scenes_of(3, side, EQUAL, held_out=True), HELD_OUT, "test", name_of)
            print(f"{FIRST} scenes to train on, {VALIDATION} to validate on and {HELD_OUT} to test on in {source}")
            print(f"class {HELD_BACK!r} is nearly missing in those to train on")

    def _ingest_scenes(self, table: ImageTable, source: Path, key: str, title: str) -> IngestResult:
        with self.story.step(key, title):
            result = table.ingest(str(source), layout="voc", size=self.args.size)
            print(f"{result.rows_in} files in = {result.stored} stored + {result.quarantined} quarantined")
            counts = _objects(table, result.version)
            print("objects to train on: " + ", ".join(f"{name} {count}" for name, count in counts.items()))
        return result

    def _show_precision(
        self, table: ImageTable, version: int, models: tuple[TrainResult, TrainResult]
    ) -> DetectionChange:
        """Evaluates both models, prints average precision by class; gives that of the held-back class."""
        with self.story.step("result", "What the data version changed: average precision at an overlap of 0.5"):
            found = self._evaluate(table, version, models)
            changes: list[DetectionChange] = [] if found.comparison is None else found.comparison.classes
            for one in changes:
                mark = "  <- the class that came with version 1" if one.name == HELD_BACK else ""
                print(f"{one.name:>8}  {one.ap50_before or 0:.3f} -> {one.ap50_after or 0:.3f}{mark}")
            print(f"page with boxes: {found.page}")
        return next(one for one in changes if one.name == HELD_BACK)

    def _trace_wrong_box(self, table: ImageTable, version: int, model: TrainResult) -> dict[str, Any]:
        """Traces the surest wrong box of a model on the held-back class to its image, run and version."""
        from lakelens.inference import trace as tracing
        from lakelens.jobs.demo.wrong_boxes import draw_box, wrong_boxes

        with self.story.step("trace", f"Why does the first model not know {HELD_BACK!r}? Back from one wrong box"):
            rows = self.session.read.format("delta").load(self.predictions)
            mine = rows.where(rows.checkpoint_digest == model.digest)
            box = wrong_boxes(mine, table.read(version)).where(f"truth.label_name = '{HELD_BACK}'").first()
            if box is None:
                print(f"no box of the first model takes {HELD_BACK!r} for another class")
                return {"picture": None}
            print(
                f"{box.truth.label_name!r} is taken for {box.found.label_name!r} with a score of {box.found.score:.2f}"
            )
            trace = next(
                one
                for one in tracing.trace(self.predictions, box.path, tracking_uri=self.tracking_uri)
                if one.prediction["checkpoint_digest"] == model.digest
            )
            trained_on = int((trace.trained_on or "").rpartition("@")[2])
            picture = self.out / "wrong_box.jpg"
            picture.write_bytes(draw_box(_bytes_of(trace.source["path"]), box.truth.asDict(), box.found.asDict()))
            objects = _objects(table, trained_on).get(HELD_BACK, 0)
            print(f"lakelens trace {self.predictions} {box.path} --tracking-uri {self.tracking_uri}")
            print(f"source image: {trace.source['path']}")
            print(f"run {model.run_id} was trained on version {trained_on}, which has {objects} of {HELD_BACK!r}")
        return {
            "path": trace.source["path"],
            "label_name": box.truth.label_name,
            "predicted_name": box.found.label_name,
            "version": trained_on,
            "picture": str(picture),
        }


def _objects(table: ImageTable, version: int) -> dict[str, int]:
    """Counts the objects of each class in the split train."""
    named = table.read(version).where("split = 'train'").selectExpr("explode(annotations.label_name) name")
    return {row["name"]: row["count"] for row in named.groupBy("name").count().orderBy("name").collect()}


def _bytes_of(path: str) -> bytes:
    return Path(os.fsdecode(local_path(path))).read_bytes()
