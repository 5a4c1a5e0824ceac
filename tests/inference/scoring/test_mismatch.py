"""Rules of what differs between a model and the table that it is to score; pure logic."""

from __future__ import annotations

import logging

import pytest

from lakelens.errors import ModelMismatchError
from lakelens.inference.scoring.mismatch import check_fit, is_same_table

pytestmark = pytest.mark.unit

FITTING = {
    "model": "runs:/a",
    "class_names": ["cat", "dog"],
    "model_size": (64, 64),
    "trained_on": "/tables/photos",
    "table": "/tables/photos",
    "labels": {"cat": 0, "dog": 1},
    "table_size": (64, 64),
}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"labels": {"cat": 0}},  # an older version of the table
        {"table_size": (299, 299)},  # resized by its training, too
        {"trained_on": None},  # the checkpoint does not say it
        {"table": "/tables/of_today"},  # equal names and sizes
        {"class_names": None, "labels": {}},
        {"labels": {"lion": 0, "dog": 1}},  # renamed since
        {"table_size": None, "table": "/tables/of_today"},
    ],
)
def test_a_model_that_fits_is_told_nothing_of(change, caplog):
    check_fit(**FITTING | change, strict=True)
    assert not caplog.records


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"class_names": ["zero", "one"], "trained_on": None},
            ["0 is 'zero' in the model and 'cat' in the table", "1 is 'one' in"],
        ),
        ({"class_names": ["dog", "cat"]}, ["0 is 'dog' in the model and 'cat' in the table"]),
        ({"labels": {"cat": 0, "dog": 1, "owl": 2}}, ["does not know the table's class 'owl' (2)"]),
        (
            {"table": "/tables/large", "table_size": (299, 299)},
            ["takes 64 x 64 pixels, the table's images have 299 x 299", "trained on another table, /tables/photos"],
        ),
        ({"table": "/tables/other", "labels": {}}, ["trained on another table, /tables/photos"]),
        ({"table": "/tables/other", "class_names": None}, ["trained on another table, /tables/photos"]),
    ],
)
def test_what_differs_is_said_once_and_strict_refuses_it(change, said, caplog):
    check_fit(**FITTING | change, strict=False)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    with pytest.raises(ModelMismatchError, match="strict=True") as caught:
        check_fit(**FITTING | change, strict=True)
    for words in said:
        assert words in record.message
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("trained_on", "table", "is_same"),
    [
        ("/tables/photos", "/tables/photos/", True),
        ("/tables/photos", "/tables/others", False),
        ("s3://birds/photos", "s3a://birds/photos/", True),
        ("S3A://birds/photos", "s3n://birds/photos", True),
        ("s3://birds/photos", "s3://other/photos", False),
        ("s3://birds/photos", "gs://birds/photos", False),
        ("gs://birds/photos", "gcs://birds/photos", True),
        ("abfs://c@a.dfs.core.windows.net/t", "abfss://c@a.dfs.core.windows.net/t", True),
        ("dbfs:/tables/photos", "/dbfs/tables/photos", True),
        ("main.birds.photos", "main.birds.photos", True),
        (None, "/tables/photos", False),
    ],
)
def test_a_table_is_the_same_under_each_name_of_its_store(trained_on, table, is_same):
    assert is_same_table(trained_on, table) is is_same
