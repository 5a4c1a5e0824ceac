"""The order of the arguments of `score` is that of the command line; that of earlier releases still works."""

from __future__ import annotations

import warnings
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lakelens
from lakelens.errors import InvalidArgumentError

pytestmark = pytest.mark.unit

TABLE = "/tables/photos"
# Predictions that are the table are refused, by name, before anything is opened.
REFUSED = "predictions and table are both /tables/photos"


@pytest.mark.parametrize(
    "version_and_predictions",
    [
        (None, TABLE),
        (3, TABLE),
        (datetime(2026, 1, 1, tzinfo=timezone.utc), TABLE),
        ("latest", TABLE),
        ("a pin", Path(TABLE)),
        (np.int64(3), TABLE),
    ],
)
def test_the_order_of_earlier_releases_works_and_warns(version_and_predictions: tuple[Any, ...]) -> None:
    spark: Any = None
    with pytest.warns(DeprecationWarning, match="predictions before version"):  # noqa: PT031
        with pytest.raises(InvalidArgumentError, match=REFUSED):
            lakelens.score(spark, "model", TABLE, *version_and_predictions)
        with pytest.raises(InvalidArgumentError, match=REFUSED):
            lakelens.score(spark, "model", TABLE, version_and_predictions[0], predictions=TABLE)


def test_latest_before_the_name_of_a_table_is_the_earlier_order() -> None:
    spark: Any = None
    with (
        pytest.warns(DeprecationWarning, match="predictions before version"),
        pytest.raises(InvalidArgumentError, match=r"predictions and table are both birds\.photos"),
    ):
        lakelens.score(spark, "model", "birds.photos", "latest", "birds.photos")


@pytest.mark.parametrize(
    "given",
    [
        ((TABLE,), {}),
        ((TABLE, 3), {}),
        ((TABLE, "latest"), {}),
        ((Path(TABLE), "2026-01-01"), {}),
        ((TABLE,), {"version": "a pin"}),
        ((), {"version": 3, "predictions": TABLE}),
    ],
)
def test_the_order_of_the_command_line_does_not_warn(given: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    spark: Any = None
    positional, named = given
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InvalidArgumentError, match=REFUSED):
            lakelens.score(spark, "model", TABLE, *positional, **named)
