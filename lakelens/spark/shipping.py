"""Brings the wheel that `spark-submit --py-files` has sent onto the executors' path.

Spark 3.5 sends every file of `--py-files`, but executors only import from those called .zip, .egg or .jar: a .whl is
found by the driver alone. A wheel is a zip file, so the same bytes under another name are enough.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from .port import ship_package, temporary_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PACKAGE = Path(__file__).parents[1]


def wheel_of_this_process(package: Path = _PACKAGE) -> Path | None:
    """Finds the .whl file that lakelens was imported from; None when it lies in a folder."""
    archive = package.parent
    return archive if archive.suffix == ".whl" and archive.is_file() else None


def ship_wheel(spark: SparkSession) -> Path | None:
    """Makes executors import lakelens from the wheel that this process imported it from.

    Does nothing for a lakelens that is installed or a clone, or when this session has the wheel already.

    Returns the file that was sent; None when nothing had to be.
    """
    wheel = wheel_of_this_process()
    if wheel is None:
        return None
    sent = temporary_folder(spark) / f"{wheel.stem}.zip"
    if sent.exists():
        return None
    shutil.copyfile(wheel, sent)
    ship_package(spark, sent)
    return sent
