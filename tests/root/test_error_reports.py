"""Errors that go from one process to another."""

from __future__ import annotations

import json
import pickle

import pytest

from lakelens.error_reports import MAX_TRACEBACK_CHARACTERS, error_in, error_of, report_of
from lakelens.errors import FeedStalledError, ImageError, LakelensError, MissingDependencyError, RankFailedError

pytestmark = pytest.mark.unit

ERRORS = [
    ImageError("corrupt", "no image"),
    RankFailedError("it died", rank=3, reason="died", log=["last line"]),
    MissingDependencyError("pip install it"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_of_lakelens_comes_back_with_its_class_message_and_attributes(error: LakelensError) -> None:
    by_json = error_of(json.loads(json.dumps(report_of(error))))
    for again in (by_json, pickle.loads(pickle.dumps(error))):
        assert type(again) is type(error)
        assert (str(again), vars(again)) == (str(error), vars(error))


def test_another_error_comes_back_as_a_plain_one_that_names_its_class() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert str(error_of(report_of(KeyError("x")))) == "KeyError: 'x'"
    assert "its message cannot be written: RuntimeError" in report_of(Mute())["message"]
    assert len(report_of(ValueError("x" * 100_000))["traceback"]) == MAX_TRACEBACK_CHARACTERS


def test_the_error_of_a_task_is_found_in_sparks_report() -> None:
    report = "Job aborted\n  File x\nlakelens.errors.FeedStalledError: s3://b has not answered\n\tat org.apache"
    found = error_in(report)
    assert isinstance(found, FeedStalledError)
    assert str(found) == "s3://b has not answered"
    assert error_in("ValueError: no") is None
    assert error_in("lakelens.errors.Nothing: no") is None
