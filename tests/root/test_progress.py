"""Progress is shown to a person at a terminal, and to nobody else."""

from __future__ import annotations

import io
import sys
import time
from typing import TYPE_CHECKING

import pytest

from lakelens.progress import spark_progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def busy(spark: SparkSession) -> None:
    spark.sparkContext.parallelize(range(6), 6).foreach(lambda _: time.sleep(0.5))


@pytest.mark.spark
def test_a_terminal_shows_the_tasks_of_the_running_stage(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with spark_progress(spark, "ingest"):
        busy(spark)
    shown = terminal.getvalue()
    assert "ingest" in shown
    assert "/6" in shown


@pytest.mark.spark
def test_nothing_is_written_where_there_is_no_terminal(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", pipe := io.StringIO())
    with spark_progress(spark, "ingest"):
        busy(spark)
    assert pipe.getvalue() == ""


@pytest.mark.spark
def test_an_error_in_the_body_ends_the_bar_and_is_raised(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with pytest.raises(RuntimeError, match="of the body"), spark_progress(spark, "ingest"):
        raise RuntimeError("of the body")
