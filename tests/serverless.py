"""A Spark Connect session that refuses what Databricks' serverless compute refuses.

Source: Databricks, "Serverless compute limitations" and "Configure Spark properties for serverless notebooks and jobs".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest

SETTABLE = (
    "spark.databricks.execution.timeout",
    "spark.sql.ansi.enabled",
    "spark.sql.legacy.timeParserPolicy",
    "spark.sql.session.timeZone",
    "spark.sql.shuffle.partitions",
)


@contextmanager
def refusing_as_serverless() -> Iterator[list[str]]:
    """Refuses these calls of all Connect sessions within the block; gives the names of what was refused."""
    from pyspark.errors.exceptions.connect import AnalysisException
    from pyspark.sql.connect.conf import RuntimeConf
    from pyspark.sql.connect.dataframe import DataFrame

    refused: list[str] = []

    def refuse(name: str, error_class: str) -> NoReturn:
        refused.append(name)
        raise AnalysisException(f"[{error_class}] {name} is not supported on serverless compute.")

    def persistence(*_: Any, **__: Any) -> NoReturn:
        refuse("PERSIST TABLE", "NOT_SUPPORTED_WITH_SERVERLESS")

    def guarded(method: Any, known: tuple[str, ...]) -> Any:
        def call(conf: Any, key: str, *values: Any) -> Any:
            return method(conf, key, *values) if key.startswith(known) else refuse(key, "CONFIG_NOT_AVAILABLE")

        return call

    def global_view(*_: Any) -> NoReturn:
        refuse("GLOBAL TEMPORARY VIEW", "NOT_SUPPORTED_WITH_SERVERLESS")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("persist", "cache", "unpersist"):
            patch.setattr(DataFrame, name, persistence)
        for name in ("createGlobalTempView", "createOrReplaceGlobalTempView"):
            patch.setattr(DataFrame, name, global_view)
        for name in ("set", "unset"):
            patch.setattr(RuntimeConf, name, guarded(getattr(RuntimeConf, name), SETTABLE))
        # PySpark reads options of its own.
        patch.setattr(RuntimeConf, "get", guarded(RuntimeConf.get, ("spark.sql.",)))
        yield refused
