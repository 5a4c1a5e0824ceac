"""Writes the files of a project: experiment, Trial, DAGs, asset bundle and notebooks (`lakelens init`)."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import Any

import lakelens
from lakelens.errors import InvalidArgumentError
from lakelens.locations import has_scheme, is_table_name, require_writable
from lakelens.table import Table

DESCRIPTION = "Write an experiment file, a Trial, Airflow DAGs, a Databricks bundle and notebooks for a table."

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
    parser.add_argument("--model", default=None, help="name of the registered model; default: the table's name")
    parser.add_argument("--dry-run", action="store_true", help="only list the files")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Writes the files and returns their names."""
    folder = args.folder.expanduser().absolute()
    table = Table.unversioned(args.table, "lakelens init").location
    model = args.model or re.split(r"[/.]", table.rstrip("/"))[-1]
    if not re.fullmatch(r"[A-Za-z_][\w-]*", model):
        raise InvalidArgumentError(f"--model {model!r}: begin with a letter, then letters, digits, _ and -")
    files = project_files(folder, table, args.source, model)
    for place in sorted({(folder / name).parent for name in files}):  # before the first one is written
        require_writable("folder", place)
    kept = [name for name in files if (folder / name).exists()]
    for name, text in files.items():
        if name in kept or args.dry_run:
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    for name in files:
        print(f"{'is there' if name in kept else 'would write' if args.dry_run else 'wrote'}  {folder / name}")
    print(f"before `databricks bundle deploy`: put {_wheel()} into {folder / 'databricks' / 'dist'}")
    for note in _bundle_notes(table, args.source):
        print(f"before `databricks bundle deploy`: {note}")
    return {
        "folder": str(folder),
        "dry_run": args.dry_run,
        "written": [] if args.dry_run else [name for name in files if name not in kept],
        "kept": kept,
    }


def project_files(folder: Path, table: str, source: str, model: str) -> dict[str, str]:
    """Gives the project's files by their names in the folder."""
    name = "".join(part.title() for part in re.split(r"[_-]", model)) + "Trial"
    files = {
        "experiment.yaml": _EXPERIMENT.format(model=model, table=table, trial=f"trial.py:{name}"),
        "trial.py": _TRIAL.format(name=name),
    }
    place = source if has_scheme(source) else str(Path(source).expanduser().absolute())
    above = str(Path(table).parent) if not has_scheme(table) and not is_table_name(table) else "/data"
    values = {
        "source": place,
        "table": table,
        "model": model,
        "experiment": model,
        "trial": f"{folder}/trial.py:{name}",
        "tracking_uri": _tracking_uri(folder),
    }
    values |= {key: f"{above}/{key}" for key in ("predictions", "candidates", "checkpoints", "reports", "results")}
    if is_table_name(table):
        values |= {key: f"{table.rpartition('.')[0]}.{key}" for key in ("predictions", "candidates")}
    for path in sorted((_templates() / "jobs" / "airflow").glob("*.py")):
        files[f"airflow/{path.name}"] = _with_defaults(path.read_text(encoding="utf-8"), values)
    bundle = _templates() / "jobs" / "databricks"
    for path in sorted(path for path in bundle.rglob("*") if path.suffix in (".yml", ".sh", ".txt", ".py")):
        files[f"databricks/{path.relative_to(bundle)}"] = path.read_text(encoding="utf-8")
    files["databricks/trial.py"] = files["trial.py"]
    files["databricks/databricks.yml"] = _with_variables(files["databricks/databricks.yml"], table, source, model, name)
    for path in sorted((_templates() / "notebooks").glob("*.py")):
        files[f"notebooks/{path.name}"] = path.read_text(encoding="utf-8")
    return files


def _templates() -> Path:
    """The folder that holds `jobs` and `notebooks`: the package's own, or the checkout."""
    return next(path for path in map(Path, lakelens.__path__) if (path / "notebooks").is_dir())


def _with_defaults(text: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        text = _replaced(text, rf'    "{name}": "', value, '",')
    return text


def _tracking_uri(folder: Path) -> str:
    """Chooses the DAGs' MLflow store; none where its URI has a password, which stays in the worker's environment."""
    from lakelens.locations import without_password
    from lakelens.tracking.runs import resolve_tracking_uri

    uri = resolve_tracking_uri(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder / 'mlflow.db'}")
    return uri if uri == without_password(uri) else ""


def _wheel() -> str:
    return f"lakelens-{lakelens.__version__}-py3-none-any.whl"


def _is_full_name(table: str) -> bool:
    return is_table_name(table) and table.count(".") == 2


def _is_in_reach(source: str) -> bool:
    """Returns whether a workspace can read the images."""
    return has_scheme(source) or source.startswith("/Volumes/")


def _bundle_notes(table: str, source: str) -> list[str]:
    """Lists what the user has to do first: variables that are still defaults, and the kind of table."""
    notes = []
    if not _is_full_name(table):
        notes.append(f"set catalog, schema, table and model in databricks.yml: {table} is not a catalog.schema.table")
    else:
        notes.append(
            f"make {table.rpartition('.')[2]} an external table in each target's schema, or write a path of the volume "
            "at `table` in databricks.yml: trainings read files by path, which managed tables refuse"
        )
    if not _is_in_reach(source):
        notes.append(f"set source in databricks.yml: {source} is neither in a volume nor a URI")
    return notes


def _with_variables(text: str, table: str, source: str, model: str, trial: str) -> str:
    values = {"trial": f"${{workspace.file_path}}/trial.py:{trial}", "wheel": f"../dist/{_wheel()}"}
    if _is_full_name(table):
        catalog, schema, name = table.split(".")
        own = "${var.catalog}.${var.schema}."
        values |= {"catalog": catalog, "schema": schema, "table": own + name, "model": own + model}
        # Every target writes into its own schema; that of prod is the user's.
        text = re.sub(r"(?m)^(      schema: )lakelens", lambda found: found[1] + schema, text)
    if _is_in_reach(source):
        values["source"] = source
    for name, value in values.items():
        text = _replaced(text, rf"  {name}:\n    description: .*\n    default: ", value, "")
    notes = "".join(f"# Before you deploy: {note}.\n" for note in _bundle_notes(table, source))
    return text.replace("variables:\n", f"{notes}variables:\n", 1)


def _replaced(text: str, before: str, value: str, after: str) -> str:
    """Puts a value between what stands before and after it on its line."""
    return re.sub(f"(?m)^({before}).*{after}$", lambda found: f"{found[1]}{value}{after}", text)
