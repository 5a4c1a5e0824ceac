"""Rules of the one form of a path, in Python, in pyarrow and in Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakelens.etl.spark.path_forms import array_in_one_form, column_in_one_form, in_one_form

_ALL = "/data/" + "".join(map(chr, range(32, 127))).replace("/", "") + "é犬\u0100"
FORMS = {
    "/data/a b.jpg": "file:///data/a%20b.jpg",
    "file:/data/a b.jpg": "file:///data/a%20b.jpg",
    "file:///data/a b.jpg": "file:///data/a%20b.jpg",
    "file:///data/a%20b.jpg": "file:///data/a%20b.jpg",
    "file:///data/ü%20+*~.jpg": "file:///data/%C3%BC%20%2B%2A~.jpg",
    "file:///data/ü 100%.jpg": "file:///data/%C3%BC%20100%25.jpg",
    "file:///data/ü %4": "file:///data/%C3%BC%20%254",
    "file:/data/%41.jpg": "file:///data/%2541.jpg",
    "/data/%41.jpg": "file:///data/%2541.jpg",
    "/": "file:///",
    "file:///": "file:///",
    "1.jpg": "1.jpg",
    "cat/a b.jpg": "cat/a b.jpg",
    "": "",
    "file:1.jpg": "file:1.jpg",
    "file://host/a b.jpg": "file://host/a b.jpg",
    "s3a://bucket/a b.jpg": "s3a://bucket/a b.jpg",
    "dbfs:/a b.jpg": "dbfs:/a b.jpg",
}


@pytest.mark.unit
@pytest.mark.parametrize(("path", "form"), FORMS.items())
def test_a_local_path_has_the_form_that_folders_give_it(path, form):
    assert in_one_form(path) == in_one_form(form) == form


@pytest.mark.unit
def test_paths_of_an_array_have_the_same_form():
    paths = pa.chunked_array([[*FORMS, None], [_ALL]])
    assert array_in_one_form(paths).to_pylist() == [*FORMS.values(), None, in_one_form(_ALL)]
    in_form = pa.chunked_array([["file:///a%20b", "1.jpg", None]])
    assert array_in_one_form(in_form) is in_form


@pytest.mark.spark
def test_spark_gives_paths_the_same_form_without_python(spark):
    texts = [*FORMS, _ALL, f"file:{_ALL}", None]
    rows = spark.createDataFrame([(number, text) for number, text in enumerate(texts)], "number INT, path STRING")
    found = rows.select("number", column_in_one_form("path").alias("form")).orderBy("number").collect()
    assert [row.form for row in found] == [None if text is None else in_one_form(text) for text in texts]
