"""Rules of what the prediction UDF is called with: how many columns, raw pixels, the struct of a file."""

from __future__ import annotations

import pandas as pd
import pytest
from colours import image_of

from lakelens.errors import InvalidArgumentError
from lakelens.inference.evaluation.evaluate import evaluate
from lakelens.inference.model.shipping import _rows_of_series
from lakelens.inference.scoring.score import score
from lakelens.inference.udf import _checked, _require_encoded, _require_source, predict_udf

pytestmark = pytest.mark.unit

PIXELS = bytes(range(192))


@pytest.mark.parametrize(
    ("call", "table", "name"),
    [(predict_udf, [], "batch_bytes"), (score, ["none"], "batch_bytes"), (evaluate, ["none"], "batch_bytes"),
     (score, ["none"], "rows_per_commit")],
)  # fmt: skip
def test_a_bound_below_one_is_refused_before_the_model_is_looked_up(call, table, name):
    with pytest.raises(InvalidArgumentError, match=f"{name}=0: give a whole number of at least 1"):
        call(None, "models:/none@none", *table, **{name: 0})


@pytest.mark.parametrize("images", [[PIXELS, PIXELS], [PIXELS, bytes(300), bytes(3000)]])
def test_a_batch_of_bare_pixels_is_a_wrong_call(images):
    with pytest.raises(InvalidArgumentError, match=rf"none of the {len(images)} images .* four columns"):
        _require_encoded(images)


@pytest.mark.parametrize(
    "images",
    [[], [b"abc", b"de"], [PIXELS], [PIXELS, PIXELS[:-3]], [PIXELS, PIXELS[:-1]], [PIXELS, PIXELS, image_of("red")]],
    ids=["none", "short", "alone", "one short", "no whole pixels", "one good"],
)
def test_bad_images_are_errors_of_their_rows(images):
    _require_encoded(images)


@pytest.mark.parametrize("count", [2, 3, 6])
def test_another_number_of_columns_is_a_wrong_call(count):
    with pytest.raises(InvalidArgumentError, match=rf"got {count} columns; give the image alone, or image, format"):
        next(_checked(iter([(pd.Series([image_of("red")]),) * count])))


@pytest.mark.parametrize("column", [pd.Series(["camera 3"]), pd.DataFrame({"width": [1], "height": [1]})])
def test_a_fifth_column_that_is_no_file_of_an_ingest_is_a_wrong_call(column):
    with pytest.raises(InvalidArgumentError, match=r"fifth column has .*; give the column 'source' of an image table"):
        _require_source(column)


def test_a_null_of_any_column_is_none_where_pandas_makes_whole_numbers_floats():
    files = pd.DataFrame({"width": [80, None], "resize": ["fit", None]})
    columns = [pd.Series(values) for values in ([PIXELS, None], ["raw_rgb", None], [8, None], [8, None])]
    rows = _rows_of_series((*columns, files))
    assert (rows.images, rows.formats) == ([PIXELS, None], ["raw_rgb", None])
    assert rows.heights == rows.widths == [8, None]
    assert rows.sources == [{"width": 80, "resize": "fit"}, {"width": None, "resize": None}]
