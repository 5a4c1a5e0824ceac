"""Rules of what differs between a model and the table that it is to score; pure logic."""

from __future__ import annotations

import logging
import re

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
    ("change", "words"),
    [
        ({"class_names": ["a", "b"], "trained_on": None}, "0 is 'a' in the model and 'cat' in the table.* 1 is 'b' in"),
        ({"class_names": ["dog", "cat"]}, "0 is 'dog' in the model and 'cat' in the table"),
        ({"labels": {"cat": 0, "dog": 1, "owl": 2}}, r"does not know the table's class 'owl' \(2\)"),
        (
            {"table": "/tables/large", "table_size": (299, 299)},
            "takes 64 x 64 pixels, the table's images have 299 x 299.* trained on another table, /tables/photos",
        ),
        ({"table": "/tables/other", "labels": {}}, "trained on another table, /tables/photos"),
        ({"table": "/tables/other", "class_names": None}, "trained on another table, /tables/photos"),
    ],
)
def test_what_differs_is_said_once_and_strict_refuses_it(change, words, caplog):
    check_fit(**FITTING | change, strict=False)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert re.search(words, record.message)
    with pytest.raises(ModelMismatchError, match=f"{words}.*strict=True"):
        check_fit(**FITTING | change, strict=True)


@pytest.mark.parametrize(
    ("trained_on", "table", "is_same"),
    [
        ("/tables/photos", "/tables/photos/", True),
        ("/tables/photos", "/tables/others", False),
        ("s3://birds/photos", "s3a://birds/photos/", True),
        ("s3://birds/photos", "gs://birds/photos", False),
        ("abfs://c@a.dfs.core.windows.net/t", "abfss://c@a.dfs.core.windows.net/t", True),
        ("dbfs:/tables/photos", "/dbfs/tables/photos", True),
        ("main.birds.photos", "main.birds.photos", True),
        (None, "/tables/photos", False),
    ],
)
def test_a_table_is_the_same_under_each_name_of_its_store(trained_on, table, is_same):
    assert is_same_table(trained_on, table) is is_same
