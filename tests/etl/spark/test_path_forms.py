"""Rules of the one form of a path."""

from __future__ import annotations

import pytest

from lakelens.etl.files import local_uri
from lakelens.etl.spark.catalog import column_in_one_form

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


@pytest.mark.spark
def test_local_paths_have_the_form_that_folders_give_them(spark):
    forms = {**FORMS, _ALL: local_uri(_ALL.encode()), f"file:{_ALL}": local_uri(_ALL.encode()), None: None}
    forms |= {form: form for form in forms.values()}
    rows = spark.createDataFrame(list(enumerate(forms)), "number INT, path STRING")
    found = rows.select("number", column_in_one_form("path").alias("form")).orderBy("number").collect()
    assert [row.form for row in found] == list(forms.values())
