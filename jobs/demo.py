"""`lakelens demo`: new data makes a model better, from a folder of images to a scored Delta table.

A first version of the table nearly lacks one class. New images become a second version, a model is trained on each by
two Horovod ranks in a two-executor Spark, and both are compared on the same images. Version 0 stays as it was.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import lakelens
from lakelens.errors import EmptySourceError, InvalidArgumentError, SourceNotFoundError
from lakelens.etl.files import CLASS_FOLDERS, Wanted
from lakelens.extras import require
from lakelens.jobs.run_lines import evaluation_lines
from lakelens.spark.jvm import SHORT_LIVED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakelens.etl.image_table import ImageTable

DESCRIPTION = "Show the whole path, from a folder of images to a scored Delta table, and why data versions matter."
DIGIT_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
# As few as a class that was just discovered in production: enough to exist, too few to learn from.
FIRST_FILES_OF_HELD_BACK = 4
MARKER = ".lakelens-demo"
_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff"})
_MASTER = "local-cluster[2,1,2048]"
_SPLITS = {"train": 0.7, "validation": 0.1, "test": 0.2}
_EXPERIMENT = """\
name: digits
entrypoint: lakelens.training.trials.small_cnn:SmallCnn
data: {{table: {}, version: latest}}
hyperparameters: {{global_batch_size: 64}}
searcher: {{name: single, metric: val_loss, max_length: {{epochs: {epochs}}}}}
resources: {{slots_per_trial: 2, strategy: horovod_cluster}}
checkpoint_storage: {{path: {}}}
tracking: {{uri: {}, experiment: lakelens-demo}}
"""


@dataclass(frozen=True)
class DemoImages:
    """Where the demo's files lie before the first ingest."""

    source: Path  # Class folders that are ingested
    arrivals: Path  # Class folders of files that arrive later
    held_back: str  # Name of the under-represented class, as the table will name it
    broken: tuple[Path, ...] = ()  # The files that are broken on purpose


def write_digits(folder: Path) -> DemoImages:
    """Writes scikit-learn's scanned digits as JPEG class folders (`001.zero/001_0001.jpg`), and two broken files."""
    # UCI Optical Recognition of Handwritten Digits: 1,797 scans of 8x8 pixels, which are enlarged.
    from PIL import Image
    from sklearn.datasets import load_digits

    images, digits = DemoImages(folder / "images", folder / "arrivals", "eight"), load_digits()
    seen: Counter[int] = Counter()
    for scan, digit in zip(digits.images, digits.target.tolist(), strict=True):
        seen[digit] += 1
        late = DIGIT_NAMES[digit] == images.held_back and seen[digit] > FIRST_FILES_OF_HELD_BACK
        target = images.arrivals if late else images.source
        target = target / f"{digit + 1:03d}.{DIGIT_NAMES[digit]}" / f"{digit + 1:03d}_{seen[digit]:04d}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        small = Image.fromarray((255 - scan * (255 / 16)).astype("uint8"))
        small.resize((96, 96), Image.Resampling.BICUBIC).save(target, quality=90)
    truncated, text = images.source / "001.zero/001_truncated.jpg", images.source / "002.one/002_notes.jpg"
    truncated.write_bytes(truncated.with_name("001_0001.jpg").read_bytes()[:400])
    text.write_text("A text file with the wrong suffix.\n", encoding="utf-8")
    return DemoImages(images.source, images.arrivals, images.held_back, (truncated, text))


def link_own(own: Path, folder: Path, limit: int = 400) -> DemoImages:
    """Links a user's class folders, holding back most of the largest class; the user's folder is only read."""
    classes: dict[Path, list[Path]] = {}
    for one in sorted(one for one in own.iterdir() if one.is_dir() and not one.name.startswith((".", "_"))):
        if files := sorted(f for f in one.rglob("*") if f.is_file() and f.suffix.lower() in _SUFFIXES):
            classes[one] = files[:limit]
    largest = max(classes, key=lambda one: len(classes[one]), default=own)
    if len(classes) < 2 or len(classes[largest]) <= FIRST_FILES_OF_HELD_BACK:
        raise EmptySourceError(
            f"{own} has {len(classes)} subfolders with images; the demo needs at least 2, one per class, and one of "
            f"them with more than {FIRST_FILES_OF_HELD_BACK} images: all others of the largest class arrive later"
        )
    wanted = Wanted(CLASS_FOLDERS).decided(one.name for one in classes)
    held_back = wanted.class_of([largest.name, ""]) or largest.name
    images = DemoImages(folder / "images", folder / "arrivals", held_back)
    for one, files in classes.items():
        for index, file in enumerate(files):
            late = one == largest and index >= FIRST_FILES_OF_HELD_BACK
            target = (images.arrivals if late else images.source) / file.relative_to(own)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(file.resolve())
    return images


def deliver(images: DemoImages) -> int:
    """Moves the files that arrive later into the folder that is ingested; gives their number."""
    files = [f for f in images.arrivals.rglob("*") if f.is_file()]
    for file in files:
        target = images.source / file.relative_to(images.arrivals)
        target.parent.mkdir(parents=True, exist_ok=True)
        file.rename(target)
    shutil.rmtree(images.arrivals)
    return len(files)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the demo's flags."""
    parser.add_argument("--images", type=Path, help="your class folders, 400 files of each; default: scanned digits")
    parser.add_argument("--out", default=Path("lakelens-demo"), type=Path, help="folder; an earlier demo is replaced")
    parser.add_argument("--size", default=32, type=int, help="side of the stored square images in pixels")
    parser.add_argument("--epochs", default=8, type=int, help="epochs of each training")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the demo and returns its summary."""
    from lakelens.spark.session import spark_session

    require("lakelens demo", "pyspark", "delta", "mlflow", "keras", "tensorflow", "sklearn", "matplotlib")
    out, own = _checked_paths(args)
    seconds: dict[str, float] = {}
    step = partial(_step, seconds)
    with step("images", f"Images: {own or 'scanned digits, written as JPEG files in class folders'}"):
        images = write_digits(out) if own is None else link_own(own, out)
        print(f"{images.source}; most images of {images.held_back!r} arrive later")
    server = os.environ.get("SPARK_REMOTE")  # a Spark Connect server has its own cluster and settings
    master = "" if server else f' --master "{_MASTER}"'
    with step("spark", f"Spark on {server or _MASTER}, and Delta Lake"):
        settings = {f"spark.{part}.extraJavaOptions": SHORT_LIVED for part in ("driver", "executor")}
        settings["spark.sql.warehouse.dir"] = str(out / "warehouse")
        spark = spark_session() if server else spark_session(_MASTER, app_name="lakelens demo", conf=settings)
        print(f"Spark {spark.version}")
    try:
        summary = _tell(spark, images, out, args, step)
    finally:
        spark.stop()
    print(f"""
Neither model nor code changed: the data version did. Each run is pinned to its version and can be trained again on it.

  everything is in      {out}   (delete the folder to undo the demo)
  train again           lakelens train {out}/experiment.yaml --set data.version=0{master}
  look at the runs      mlflow ui --backend-store-uri sqlite:///{out}/mlflow.db
  read version 0        spark.read.format("delta").option("versionAsOf", 0).load("{out}/tables/images")
""")
    seconds["total"] = round(sum(seconds.values()), 1)
    return {**summary, "seconds": seconds, "exit_code": 0 if summary["version_0_unchanged"] else 1}


def _checked_paths(args: argparse.Namespace) -> tuple[Path, Path | None]:
    """Makes the demo's folder again once the flags are right; only a folder that an earlier demo made is removed."""
    if min(args.size, args.epochs) < 1:
        raise InvalidArgumentError(f"--size {args.size} and --epochs {args.epochs} must be 1 or more")
    out, own = args.out.expanduser().resolve(), args.images and args.images.expanduser().absolute()
    if own and not own.is_dir():
        raise SourceNotFoundError(f"{own} is not a folder; --images must name a folder with one subfolder per class")
    if own and out in (own.resolve(), *own.resolve().parents):
        raise InvalidArgumentError(f"--images {own} lies in --out {out}, which the demo replaces; name another --out")
    if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        if not (out / MARKER).is_file():
            raise InvalidArgumentError(f"--out {out} was not made by the demo and is not empty; name another folder")
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).write_text("The demo made this folder and may delete it.\n", encoding="utf-8")
    return out, own


@contextmanager
def _step(seconds: dict[str, float], key: str, title: str) -> Iterator[None]:
    """Prints a numbered title, runs the body, and prints and keeps its time."""
    print(f"\n[{len(seconds) + 1}/10] {title}", flush=True)
    start = time.perf_counter()
    yield
    seconds[key] = round(time.perf_counter() - start, 1)
    print(f"{seconds[key]:.1f} s", flush=True)


def _tell(spark: SparkSession, images: DemoImages, out: Path, args: argparse.Namespace, step: Any) -> dict[str, Any]:
    """Runs the steps in Spark."""
    table, predictions = lakelens.ImageTable(spark, str(out / "tables/images")), str(out / "tables/predictions")
    tracking_uri, experiment = f"sqlite:///{out}/mlflow.db", out / "experiment.yaml"
    quoted = map(json.dumps, (table.location, str(out / "checkpoints"), tracking_uri))
    experiment.write_text(_EXPERIMENT.format(*quoted, epochs=args.epochs), encoding="utf-8")
    ingested, models, rows_of_first = [], [], set[tuple[Any, ...]]()
    for version in (0, 1):
        if version == 1:
            with step("arrivals", f"New images of {images.held_back!r} arrive"):
                print(f"{deliver(images)} files moved into {images.source}")
        with step(f"ingest_{version}", f"Ingest: version {version}; only new files are read"):
            done = table.ingest(images.source, layout="class_folders", size=args.size, splits=_SPLITS)
            counts = {name: getattr(done, name) for name in ("stored", "quarantined", "skipped")}
            print(f"{done.rows_in} files in =", " + ".join(f"{number} {name}" for name, number in counts.items()))
            for file in table.quarantine().files if done.quarantined else []:
                print(f"quarantined: {Path(file.path).name}: {file.reason}")
            ingested.append((done.version, {"in": done.rows_in, **counts}))
        rows_of_first = rows_of_first or _rows(table, 0)
        with step(f"train_{version}", f"Train on version {version}: 2 ranks as Spark barrier tasks"):
            changes = [f"data.version={version}", f"name=version {version}"]
            trained = lakelens.train(lakelens.ExperimentConfig.read(experiment, changes), spark=spark)
            print(f"run {trained.run_id}", *(f"{name} {value:.3f}" for name, value in sorted(trained.metrics.items())))
            models.append(f"runs:/{trained.run_id}")
    with step("score", "Score both models on the same images: split test of version 1"):
        where = (table.location, predictions, 1)
        scored = [lakelens.score(spark, model, *where, split="test", tracking_uri=tracking_uri) for model in models]
        print("\n".join(f"{one.model_uri}: {one.scored} rows scored, {one.errors} errors" for one in scored))
    with step("result", "What the data version changed"):
        outputs: dict[str, Any] = {
            "predictions": predictions,
            "out": str(out / "evaluation"),
            "tracking_uri": tracking_uri,
        }
        found = lakelens.evaluate(spark, models[1], table.location, 1, compare=models[0], **outputs)
        print("\n".join(evaluation_lines(found)))
        changed, other = cast("Any", (found.comparison, found.other))  # of two classifiers
        held_back = next(one for one in changed.classes if one.name == images.held_back)
        print(f"recall of {held_back.name!r}: {held_back.recall_before} -> {held_back.recall_after}")
    with step("time_travel", "Back to version 0"):
        same = _rows(table, 0) == rows_of_first
        print(f"version 0 still has its {len(rows_of_first)} rows" if same else "VERSION 0 HAS CHANGED")
    return {
        "versions": [version for version, _ in ingested],
        "runs": [model.removeprefix("runs:/") for model in models],
        "rows": [counts for _, counts in ingested],
        "class": images.held_back,
        "recall_before": held_back.recall_before,
        "recall_after": held_back.recall_after,
        "most_improved_class": changed.most_improved_class,
        "accuracy_before": other.scores["accuracy"],
        "accuracy_after": found.evaluation.scores["accuracy"],
        "predictions": {"path": predictions, "version": scored[-1].version, "rows": sum(one.scored for one in scored)},
        "version_0_unchanged": same,
    }


def _rows(table: ImageTable, version: int) -> set[tuple[Any, ...]]:
    """Reads what identifies each row of a version."""
    return set(map(tuple, table.read(version).select("path", "content_hash", "split").collect()))
