"""The demo of object detection (`lakelens demo --detection`): what a version changes that brings a missing class."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakelens.jobs.demo.digit_scenes import DigitScenes, write_voc
from lakelens.jobs.demo.story import RANKS, Demo

if TYPE_CHECKING:
    from lakelens.etl.image_table import ImageTable
    from lakelens.etl.ingest.run import IngestResult
    from lakelens.training.experiment.run_trial import TrainResult

SIDE = 128
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
# Few classes, so that a training of a minute has many objects of each.
SHOWN, HELD_BACK = ("two", "four", "seven"), "seven"
FIRST, LATE, HELD_OUT = 360, 240, 80
EXPERIMENT = """\
name: digits on photographs
task: detection
entrypoint: lakelens.training.trials.detector:Detector
data: {{table: {table}, version: latest}}
hyperparameters:
  global_batch_size: 8
  learning_rate: 2e-3
  flip: false    # a mirrored digit is another sign
searcher:
  metric: val_map50
  max_length: {{epochs: 10}}
min_validation_period: {{epochs: 5}}
resources: {{slots_per_trial: {ranks}, strategy: horovod_cluster}}
checkpoint_storage: {{path: {checkpoints}}}
tracking: {{uri: {tracking_uri}, experiment: lakelens-demo}}
"""


class DetectionDemo(Demo):
    """Two versions of a table of scenes, a detector trained on each, and their average precision by class."""

    steps = 8

    def tell(self) -> dict[str, Any]:
        """Runs the eight steps."""
        started = time.perf_counter()
        source = self.out / "scenes"
        with self.story.step("images", "Images: scanned digits pasted on photographs, with boxes, as Pascal VOC"):
            self._write(source, FIRST, "train", seed=1, of_held_back=0.02)
            self._write(source, HELD_OUT, "val", seed=2, of_held_back=1.0)
            print(
                f"{FIRST} scenes to train on and {HELD_OUT} to measure on; {HELD_BACK!r} is nearly missing in the first"
            )
        table = self._open_table()
        self._write_experiment(table)
        first = self._ingest_scenes(table, source, "ingest_0", "Ingest: version 0")
        model_0 = self._train(first.version, "train_0")
        with self.story.step("arrivals", f"New scenes with {HELD_BACK!r} arrive"):
            self._write(source, LATE, "train", seed=3, of_held_back=4.0)
            print(f"{LATE} files more in {source}")
        second = self._ingest_scenes(table, source, "ingest_1", "Ingest again: version 1, only the new files are read")
        model_1 = self._train(second.version, "train_1")
        before, after = self._compare(model_0, model_1)
        print(
            f"""
  look at the boxes     {self.out / "pictures"}: true in blue, found in orange
  look at the runs      mlflow ui --backend-store-uri {self.tracking_uri}
  train again           lakelens train {self.experiment} --set data.version=0 --master "{self.master}"
""",
            flush=True,
        )
        return {
            "versions": [first.version, second.version],
            "runs": [model_0.run_id, model_1.run_id],
            "class": HELD_BACK,
            "ap50_before": before,
            "ap50_after": after,
            "seconds": {**self.story.seconds, "total": round(time.perf_counter() - started, 1)},
        }

    def _write(self, source: Path, count: int, split: str, *, seed: int, of_held_back: float) -> None:
        chance = [(of_held_back if name == HELD_BACK else 1.0) * (name in SHOWN) for name in NAMES]
        scenes = DigitScenes(held_out=split == "val", seed=seed, side=SIDE, chance=chance)
        write_voc(source, scenes, count, split, NAMES.__getitem__)

    def _write_experiment(self, table: ImageTable) -> None:
        text = EXPERIMENT.format(
            table=json.dumps(table.location),
            ranks=RANKS,
            checkpoints=json.dumps(str(self.out / "checkpoints")),
            tracking_uri=json.dumps(self.tracking_uri),
        )
        self.experiment.write_text(text, encoding="utf-8")

    def _ingest_scenes(self, table: ImageTable, source: Path, key: str, title: str) -> IngestResult:
        with self.story.step(key, title):
            result = table.ingest(str(source), layout="voc", size=SIDE)
            print(f"{result.rows_in} files in = {result.stored} stored + {result.skipped} known and unchanged")
        return result

    def _compare(self, before: TrainResult, after: TrainResult) -> tuple[float, float]:
        """Prints average precision by class of both models; gives that of the held-back class."""
        from lakelens.tracking.runs import open_client

        found: list[dict[str, float]] = []
        with self.story.step("result", "What the data version changed: average precision at an overlap of 0.5"):
            client = open_client(self.tracking_uri)
            for number, model in enumerate((before, after)):
                folder = self.out / "pictures" / f"version {number}"
                folder.mkdir(parents=True)
                client.download_artifacts(model.run_id, "validation", str(folder))
                with (folder / "validation" / "per_class.csv").open(encoding="utf-8", newline="") as file:
                    found.append({row["class"]: float(row["ap50"]) for row in csv.DictReader(file)})
            for name, precision in found[1].items():
                mark = "  <- the class that came with version 1" if name == HELD_BACK else ""
                print(f"{name:>8}  {found[0].get(name, 0.0):.3f} -> {precision:.3f}{mark}")
        return found[0].get(HELD_BACK, 0.0), found[1][HELD_BACK]
