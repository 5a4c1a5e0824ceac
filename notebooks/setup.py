# Databricks notebook source
# MAGIC %md
# MAGIC What the notebooks share. Databricks provides `spark`, `display` and `dbutils`. In a Jupyter kernel
# MAGIC elsewhere this notebook defines them: a Spark on this machine, IPython's `display`, and widgets whose
# MAGIC values come from the environment (`LAKELENS_WIDGETS`, a JSON object).
# MAGIC
# MAGIC On Databricks, with an ML runtime: remove the first `#` of both lines of the next cell, write the path of your
# MAGIC wheel, and run it once before anything else. The extra `databricks` brings MLflow 3 and a newer Keras.
# MAGIC Or install the wheel and the packages of the extra as libraries of the cluster.

# COMMAND ----------

# MAGIC # %pip install "/Volumes/main/default/libraries/lakelens-0.1.0-py3-none-any.whl[databricks]"
# MAGIC # %restart_python

# COMMAND ----------

import io
import json
import os
from html import escape
from pathlib import Path

import lakelens

ON_DATABRICKS = "DATABRICKS_RUNTIME_VERSION" in os.environ

if "dbutils" not in globals():
    from IPython.display import HTML
    from IPython.display import display as _display

    class _Widgets:
        """Widgets without a page: each has its default, or the value that LAKELENS_WIDGETS gives it."""

        def __init__(self):
            self._values = json.loads(os.environ.get("LAKELENS_WIDGETS", "{}"))

        def text(self, name, default, label=None):
            self._values.setdefault(name, default)

        def dropdown(self, name, default, choices, label=None):
            self.text(name, default, label)

        def get(self, name):
            return self._values[name]

    class _Utilities:
        widgets = _Widgets()

    dbutils = _Utilities()
    _connects = "SPARK_REMOTE" in os.environ
    spark = lakelens.spark_session(
        None if _connects else os.environ.get("LAKELENS_MASTER", "local-cluster[2,1,1024]"),
        conf={"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "4"},
    )
    if not _connects:  # a server has its own log
        spark.sparkContext.setLogLevel("ERROR")

    def displayHTML(page):
        """Shows a page in a frame, so that its styles do not reach the notebook."""
        _display(HTML(f'<div><iframe srcdoc="{escape(page)}" style="width:100%;height:700px;border:0"></iframe></div>'))

    def display(thing):
        """Shows a Spark DataFrame as a table, anything else as IPython does."""
        _display(thing.limit(1000).toPandas() if hasattr(thing, "toPandas") else thing)


# COMMAND ----------


def default_folder():
    """The volume `lakelens` of the current schema on Databricks, a folder of the home directory elsewhere."""
    if not ON_DATABRICKS:
        return "~/lakelens-notebooks"
    return "/".join(["", "Volumes", *spark.sql("select current_catalog(), current_schema()").first(), "lakelens"])


def folder_of(widget):
    """The folder that a widget names, made if it is missing: in a volume on Databricks, any folder elsewhere."""
    folder = Path(dbutils.widgets.get(widget)).expanduser().absolute()
    if ON_DATABRICKS and not str(folder).startswith(("/Volumes/", "/dbfs/")):
        raise ValueError(
            f"the widget {widget!r} is {folder}, which the workers do not have; give a folder of a volume, such as "
            "/Volumes/main/default/files/lakelens"
        )
    if folder.parts[1] == "Volumes" and not Path(*folder.parts[:5]).exists():
        spark.sql("create volume `{}`.`{}`.`{}`".format(*folder.parts[2:5]))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def store_of(folder):
    """The MLflow store: None, which is the workspace's own, on Databricks; elsewhere a file in the folder."""
    return None if ON_DATABRICKS else f"sqlite:///{folder / 'mlflow.db'}"


def experiment_of(name):
    """The name of an MLflow experiment: on Databricks a path in the user's part of the workspace."""
    if not ON_DATABRICKS:
        return name
    return f"/Users/{spark.sql('select current_user()').first()[0]}/lakelens-{name}"


DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def digit_folders(folder, per_class=60):
    """Writes scanned digits (UCI, 8 x 8, enlarged) as JPEG files in class folders, unless they exist.

    All but four images of `eight` stay in `arrivals`: they come later. Two files are broken on purpose.
    """
    from PIL import Image
    from sklearn.datasets import load_digits

    images, arrivals = folder / "images", folder / "arrivals"
    if images.exists():
        return images, arrivals
    written = dict.fromkeys(DIGITS, 0)
    digits = load_digits()
    for scan, digit in zip(digits.images, digits.target, strict=True):
        name = DIGITS[digit]
        written[name] += 1
        if written[name] <= per_class:
            late = name == "eight" and written[name] > 4
            file = (arrivals if late else images) / f"{digit:03d}.{name}" / f"{written[name]:04d}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            pixels = (255 - scan * (255 / 16)).astype("uint8")
            Image.fromarray(pixels).resize((96, 96), Image.Resampling.BICUBIC).save(file, quality=90)
    whole = (images / "000.zero" / "0001.jpg").read_bytes()
    (images / "000.zero" / "truncated.jpg").write_bytes(whole[: len(whole) // 2])
    (images / "000.zero" / "empty.jpg").touch()
    return images, arrivals


def image_table(folder):
    """The image table that the widget `table` names, by path or as catalog.schema.table; else one in the folder."""
    return lakelens.ImageTable(spark, dbutils.widgets.get("table") or str(folder / "tables" / "digits"))


def exists(table):
    """Whether an image table has a version."""
    try:
        return table.version >= 0
    except lakelens.errors.NotADeltaTableError:
        return False


def new_table(folder):
    """The same for a notebook that makes its table and begins with version 0."""
    table = image_table(folder)
    if exists(table):
        raise ValueError(f"there is a table {table.location} already; name another in the widget 'table', or drop it")
    return table


def table_of_digits(folder):
    """The image table, made of digits if it does not exist."""
    table = image_table(folder)
    if not exists(table):
        images, _ = digit_folders(folder)
        table.ingest(str(images), size=32, splits={"train": 0.7, "validation": 0.1, "test": 0.2})
    return table


def path_of(table):
    """The path of an image table, which ranks read without Spark and its catalog."""
    if "/" in table.location:
        return table.location
    return spark.sql(f"describe detail {table.location}").first().location.removeprefix("dbfs:").removeprefix("file:")


def show_picture(data, width=None):
    """Shows a PNG or JPEG: a file or its bytes."""
    from IPython.display import Image, display

    display(Image(data if isinstance(data, bytes) else Path(data).read_bytes(), width=width))


def show_images(frame, columns=10, title=None):
    """Draws the images of a DataFrame with columns `image`, and `label_name` or `caption`."""
    from matplotlib import pyplot as plt
    from PIL import Image

    rows = frame.collect()
    lines = -(-len(rows) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(1.3 * columns, 1.55 * lines), squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for axis, row in zip(axes.flat, rows, strict=False):
        axis.imshow(Image.open(io.BytesIO(row.image)))
        axis.set_title(row.caption if "caption" in row else row.label_name, fontsize=8)
    figure.suptitle(title or "")
    figure.tight_layout()
    plt.show()


def show_boxes(frame, columns=4, title=None):
    """Draws the images of a DataFrame with columns `image` and `annotations`, with their boxes and class names."""
    from matplotlib import patches
    from matplotlib import pyplot as plt
    from PIL import Image

    rows = frame.collect()
    lines = -(-len(rows) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(3 * columns, 3 * lines + 0.4), squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for axis, row in zip(axes.flat, rows, strict=False):
        image = Image.open(io.BytesIO(row.image))
        axis.imshow(image, extent=(0, image.width, image.height, 0))
        for box in row.annotations:
            corner, width, height = (box.xmin, box.ymin), box.xmax - box.xmin, box.ymax - box.ymin
            axis.add_patch(patches.Rectangle(corner, width, height, fill=False, edgecolor="#19c37d", linewidth=2))
            label = {"facecolor": "#19c37d", "edgecolor": "none", "pad": 1}
            axis.text(box.xmin, box.ymin, box.label_name, fontsize=8, va="top", bbox=label)
    figure.suptitle(title or "")
    figure.tight_layout()
    plt.show()


def learning_curves(store, *runs):
    """Draws the validation accuracy of runs over their epochs, each thinner than the one below it."""
    from matplotlib import pyplot as plt
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=store)
    for place, (name, run) in enumerate(runs):
        points = sorted((point.step, point.value) for point in client.get_metric_history(run.run_id, "val_accuracy"))
        width = 3 * (len(runs) - place) - 1.5
        plt.plot(*zip(*points, strict=True), marker="o", linewidth=width, markersize=3 * width, label=name)
    plt.gca().xaxis.get_major_locator().set_params(integer=True)
    plt.xlabel("epoch")
    plt.ylabel("validation accuracy")
    plt.grid(alpha=0.3)
    plt.legend()
    plt.show()
