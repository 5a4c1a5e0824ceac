"""What lakelens needs of a session's context and JVM has one place."""

from __future__ import annotations

import ast
from contextlib import ExitStack
from pathlib import Path

import pytest

from lakelens.spark.port import forget, forgetting, keep, ship_file

ROOT = Path(__file__).parents[3]
PORT = ROOT / "lakelens" / "spark" / "port.py"
OF_THE_DRIVER = {"sparkContext", "rdd", "_jvm", "_jsparkSession", "_jsc"}
REFUSED_BY_SERVERLESS = {"persist", "unpersist"}


@pytest.mark.unit
def test_no_other_module_reaches_for_the_context_or_the_jvm_of_a_session():
    packages = ("lakelens", "etl", "training", "search", "inference", "jobs")
    modules = (path for package in packages for path in (ROOT / package).rglob("*.py") if path != PORT)
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in modules
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in OF_THE_DRIVER | REFUSED_BY_SERVERLESS
    ]
    assert found == []


@pytest.mark.spark
@pytest.mark.sessions("connect")
def test_a_file_is_sent_to_a_connect_server_once(spark, tmp_path):
    file = tmp_path / "sent once.bin"
    file.write_bytes(b"model")
    ship_file(spark, file)
    file.unlink()
    ship_file(spark, file)  # a server of Spark 3.5 refuses a name that it has


@pytest.mark.spark
@pytest.mark.parametrize("ends_first", ["reader", "writer"])
def test_rows_that_a_commit_puts_back_into_the_cache_do_not_stay_there(spark, tmp_path, ends_first):
    cache = spark._jsparkSession.sharedState().cacheManager()
    location = str(tmp_path / "t")
    spark.range(3).write.format("delta").save(location)
    before = cache.numCachedEntries()
    with ExitStack() as writer:
        writer.enter_context(forgetting())
        with ExitStack() as reader:
            reader.enter_context(forgetting())
            frame = keep(spark.read.format("delta").load(location))
            assert cache.numCachedEntries() == before + 1
            forget(frame)
            if ends_first == "reader":
                reader.close()
            frame.persist()  # as the commit of another thread does with all that it has found a moment before
            if ends_first == "writer":
                writer.close()
    assert cache.numCachedEntries() == before
