"""Writes the files of a project: experiment, Trial, notebooks, and files for a scheduler (`lakelens init`)."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lakelens
from lakelens.errors import InvalidArgumentError
from lakelens.locations import has_scheme, is_table_name, name_parts, require_writable
from lakelens.table import Table

DESCRIPTION = "Write an experiment file, a Trial and notebooks for a table; DAGs or a Databricks bundle on request."

_EXPERIMENT = """\
# lakelens train experiment.yaml --dry-run     version, rows, steps, memory
# lakelens train experiment.yaml               trains, tracked in MLflow
name: {model}
entrypoint: {trial}
data:
  table: {table}
  version: latest            # the number that was read is recorded
hyperparameters:
  global_batch_size: 64      # over all ranks
  learning_rate: 0.003
  filters: 16
searcher:
  name: single
  metric: val_loss
  max_length:
    epochs: 10
early_stopping:
  patience: 3
resources:
  slots_per_trial: 1         # more of them: ranks on the driver or, with a Spark session, on executors
tracking:
  experiment: {model}
"""
_TRIAL = '''\
"""What is trained: the model and its optimizer. It contains no distributed code and no location of data."""

from __future__ import annotations

import keras
import lakelens


class {name}(lakelens.KerasTrial):
    """A small network; replace it by yours."""

    def build_model(self) -> keras.Model:
        """Builds the model for the images' size and the table's classes."""
        filters = self.context.get_hparam("filters", 16)
        model = keras.Sequential(
            [
                keras.Input((*self.context.image_size, 3)),
                keras.layers.Rescaling(1 / 255),
                keras.layers.Conv2D(filters, 3, 2, "same", activation="relu"),
                keras.layers.Conv2D(2 * filters, 3, 2, "same", activation="relu"),
                keras.layers.GlobalAveragePooling2D(),
                keras.layers.Dense(self.context.num_classes, "softmax", dtype="float32"),
            ]
        )
        rate = self.context.get_hparam("learning_rate", 0.003)
        model.compile(
            keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", weighted_metrics=["accuracy"]
        )
        return model
'''


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the job's flags."""
    parser.add_argument("folder", type=Path, help="folder to write; existing files stay")
    parser.add_argument("--table", default="tables/photos", help="image table: path, URI or catalog.schema.table")
    parser.add_argument("--source", default="photos", help="folder of images (path or URI)")
    parser.add_argument("--model", help="name of the registered model; default: the table's name")
    parser.add_argument("--airflow", action="store_true", help="also write Airflow DAGs")
    parser.add_argument("--databricks", action="store_true", help="also write a Databricks asset bundle")
    parser.add_argument("--dry-run", action="store_true", help="only list the files")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Writes the files and returns their names."""
    folder = args.folder.expanduser().absolute()
    table = Table.unversioned(args.table, "lakelens init").location
    model = args.model or re.split(r"[/.]", table.rstrip("/"))[-1]
    if not re.fullmatch(r"[A-Za-z_][\w-]*", model):
        raise InvalidArgumentError(f"--model {model!r}: begin with a letter, then letters, digits, _ and -")
    parts = ["notebooks", *(["airflow"] if args.airflow else []), *(["databricks"] if args.databricks else [])]
    files = project_files(folder, table, args.source, model, parts)
    for place in sorted({(folder / name).parent for name in files}):  # before the first one is written
        require_writable("folder", place)
    kept = [name for name in files if (folder / name).exists()]
    for name, text in files.items():
        print(f"{'is there' if name in kept else 'would write' if args.dry_run else 'wrote'}  {folder / name}")
        if name not in kept and not args.dry_run:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
    return {
        "folder": str(folder),
        "dry_run": args.dry_run,
        "written": [] if args.dry_run else [name for name in files if name not in kept],
        "kept": kept,
    }


def project_files(folder: Path, table: str, source: str, model: str, parts: Sequence[str]) -> dict[str, str]:
    """Gives the project's files by their names in the folder."""
    trial = "".join(part.title() for part in re.split(r"[_-]", model)) + "Trial"
    files = {
        "experiment.yaml": _EXPERIMENT.format(model=model, table=table, trial=f"trial.py:{trial}"),
        "trial.py": _TRIAL.format(name=trial),
    }
    package = next(path for path in map(Path, lakelens.__path__) if (path / "notebooks").is_dir())
    for part in parts:
        templates = package / ("notebooks" if part == "notebooks" else f"jobs/{part}")
        for path in sorted(path for path in templates.rglob("*") if path.suffix in (".py", ".yml", ".sh", ".txt")):
            files[f"{part}/{path.relative_to(templates)}"] = path.read_text(encoding="utf-8")
    if "databricks" in parts:
        files["databricks/trial.py"] = files["trial.py"]
    for name, before, old, new in _replacements(folder, table, source, model, trial):
        if name in files:
            value = new.replace("\\", r"\\")  # `re.sub` reads escapes in it
            files[name] = re.sub(f"(?m)^({before}){old}", rf"\g<1>{value}", files[name])
    return files


def _replacements(folder: Path, table: str, source: str, model: str, trial: str) -> Iterator[tuple[str, str, str, str]]:
    """Gives what is the user's in the templates: file, start of the line and old value as patterns, and new value."""
    names = name_parts(table) if is_table_name(table) else []
    above = "/data" if names or has_scheme(table) else str(Path(table).parent)
    airflow = {
        "source": source if has_scheme(source) else str(Path(source).expanduser().absolute()),
        "table": table,
        "model": model,
        "experiment": model,
        "trial": f"{folder}/trial.py:{trial}",
        **{key: f"{above}/{key}" for key in ("predictions", "candidates", "checkpoints", "reports")},
        **{key: ".".join([*names[:-1], key]) for key in ("predictions", "candidates") if names},
    }
    for key, value in airflow.items():
        yield "airflow/lakelens_steps.py", f'    "{key}": ', '".*"', json.dumps(value, ensure_ascii=False)
    own = "${var.catalog}.${var.schema}."
    bundle = {
        "trial": f"${{workspace.file_path}}/trial.py:{trial}",
        "wheel": f"../dist/lakelens-{lakelens.__version__}-py3-none-any.whl",
        "source": source,
        "table": own + names[2] if len(names) == 3 else table,
        "model": own + model,
    }
    if len(names) == 3:
        bundle |= {"catalog": names[0], "schema": names[1]}
        # Every target writes into its own schema; that of prod is the user's.
        yield "databricks/databricks.yml", "      schema: ", "lakelens", names[1]
    for key, value in bundle.items():
        yield "databricks/databricks.yml", rf"  {key}:\n    description: .*\n    default: ", ".*", value
