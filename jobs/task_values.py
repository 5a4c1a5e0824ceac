"""The values that a task of a Databricks job hands to the tasks after it, as `{{tasks.<task>.values.<name>}}`."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

logger = logging.getLogger(__name__)

# Databricks takes at most 48 KiB of JSON for one value.
_LIMIT_BYTES = 48 << 10


def set_task_values(result: Mapping[str, Any]) -> None:
    """Sets each value of a result as a task value in a Databricks job; a runtime that refuses one is a warning."""
    if "DATABRICKS_RUNTIME_VERSION" not in os.environ:
        return
    try:
        values = _task_values()
    except Exception as error:  # noqa: BLE001  an interactive cluster, or Spark Connect without one
        logger.warning("no task values: this runtime has no dbutils (%s)", error)
        return
    for name, value in result.items():
        if value is None or len(json.dumps(value, default=str)) > _LIMIT_BYTES:
            continue
        try:
            values.set(key=name, value=value)
        except Exception as error:  # noqa: BLE001  as above
            logger.warning("task value %s was not set: %s", name, error)


def _task_values() -> Any:
    """Finds `dbutils.jobs.taskValues`: a notebook has it among its names, a script asks the runtime for it."""
    with suppress(ImportError):
        from IPython import get_ipython  # type: ignore[import-not-found, unused-ignore]  # no package of ours needs it

        shell = get_ipython()
        if shell is not None and "dbutils" in shell.user_ns:
            return shell.user_ns["dbutils"].jobs.taskValues
    from pyspark.dbutils import DBUtils  # type: ignore[import-not-found, unused-ignore]  # the runtime's own pyspark
    from pyspark.sql import SparkSession

    return DBUtils(SparkSession.builder.getOrCreate()).jobs.taskValues
