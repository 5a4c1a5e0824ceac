"""A Spark Connect session that refuses what Databricks' serverless compute refuses.

Source: Databricks, "Serverless compute limitations" and "Configure Spark properties for serverless notebooks and jobs".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest

LOCAL_ROWS_BYTES = 128_000_000
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
    from pyspark.sql.connect.plan import LocalRelation

    refused: list[str] = []

    def refuse(name: str, error_class: str) -> NoReturn:
        refused.append(name)
        raise AnalysisException(f"[{error_class}] {name} is not supported on serverless compute.")

    def refusing(name: str) -> Any:
        return lambda *_, **__: refuse(name, "NOT_SUPPORTED_WITH_SERVERLESS")

    def guarded(method: Any, known: tuple[str, ...]) -> Any:
        def call(conf: Any, key: str, *values: Any) -> Any:
            return method(conf, key, *values) if key.startswith(known) else refuse(key, "CONFIG_NOT_AVAILABLE")

        return call

    make_local = LocalRelation.__init__

    def local_rows(relation: Any, table: Any, *schema: Any, **named: Any) -> None:
        if table is not None and table.nbytes > LOCAL_ROWS_BYTES:
            refuse("LOCAL ROWS", "LOCAL_RELATION_SIZE_LIMIT_EXCEEDED")
        make_local(relation, table, *schema, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalRelation, "__init__", local_rows)
        for name in ("persist", "cache", "unpersist"):
            patch.setattr(DataFrame, name, refusing("PERSIST TABLE"))
        for name in ("createGlobalTempView", "createOrReplaceGlobalTempView"):
            patch.setattr(DataFrame, name, refusing("GLOBAL TEMPORARY VIEW"))
        for name in ("set", "unset"):
            patch.setattr(RuntimeConf, name, guarded(getattr(RuntimeConf, name), SETTABLE))
        # PySpark reads options of its own.
        patch.setattr(RuntimeConf, "get", guarded(RuntimeConf.get, ("spark.sql.", "spark.python.sql.")))
        yield refused
