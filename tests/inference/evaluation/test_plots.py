"""Rules of an evaluation's pictures and page."""

from __future__ import annotations

import io
from dataclasses import replace

import pandas as pd
import pytest
from colours import image_of
from PIL import Image

from lakelens.etl.images.stored_image import StoredImage
from lakelens.inference.evaluation.comparison import compare
from lakelens.inference.evaluation.metrics import measure
from lakelens.inference.evaluation.page import render_page
from lakelens.inference.evaluation.plots import (
    MOST_CLASSES_DRAWN,
    comparison_figure,
    draw_comparison,
    draw_plots,
    draw_slices,
    thumbnail,
)
from lakelens.inference.evaluation.result import EvaluationResult, Shown

pytestmark = pytest.mark.unit

COLUMNS = ["label", "prediction", "true_rank", "bin", "rows", "confidence"]
LONG = "a class whose name is longer than a line"
SHOWN = Shown("file:/a/b.jpg", "red", (("green", 0.9), ("red", None)), StoredImage(image_of("red")))


def evaluated(classes):
    names = {number: f"class $ {number}" for number in range(classes)}
    counts = [(n, (n + n % 3) % classes, n % 3, n % 15, 4, 2.0) for n in range(classes)]
    pairs = [(n, n if n % 2 else (n + 1) % classes, n, 3) for n in range(classes)]
    changes = pd.DataFrame(pairs, columns=["label", "before", "after", "rows"])
    return measure(pd.DataFrame(counts, columns=COLUMNS), names), compare(changes, names)


@pytest.mark.parametrize("classes", [2, MOST_CLASSES_DRAWN + 30])
def test_pictures_are_drawn_with_few_and_with_many_classes(classes):
    evaluation, comparison = evaluated(classes)
    plots = draw_plots(evaluation, [SHOWN] * 7)
    assert set(plots) == {"classes", "confusion_matrix", "calibration", "worst_mistakes"}
    plots["comparison"] = draw_comparison(comparison, [SHOWN] * 5, ("version 0", "version 1"))
    plots["slices"] = draw_slices({"a": evaluation, "<b>": evaluation}, "camera", 0.5)
    for name, data in plots.items():
        with Image.open(io.BytesIO(data)) as picture:
            assert picture.format == "PNG", name
            assert max(picture.size) < 2000, name


@pytest.mark.parametrize("samples", [3, 12])
def test_no_text_of_a_comparison_lies_over_another(samples):
    from itertools import combinations

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    _, comparison = evaluated(10)
    path = "file:/photos/batch-00000001/IMG_20260101_original.jpeg"
    one = replace(SHOWN, path=path, truth=LONG, answers=((LONG, 0.91), (LONG, 0.55)))
    models = ("runs:/0123456789abcdef0123456789abcdef", "models:/a model of birds and of other animals@champion")
    figure = comparison_figure(comparison, [one] * samples, models)
    FigureCanvasAgg(figure).draw()
    texts = [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]
    assert sum("→" in text.get_text() and "0.55" in text.get_text() for text in texts) == samples
    for first, second in combinations(texts, 2):
        assert not first.get_window_extent().overlaps(second.get_window_extent()), (first, second)


def test_an_image_that_does_not_decode_is_left_out():
    assert thumbnail(Shown("p", "red", (("red", 1.0),), StoredImage(b"no image"))) is None
    assert thumbnail(Shown("p", "red", (("red", 1.0),))) is None
    assert thumbnail(SHOWN)[:2] == b"\xff\xd8"


def test_the_page_escapes_what_comes_from_the_table():
    evaluation = measure(pd.DataFrame([(0, 1, 1, 3, 1, 0.2)], columns=COLUMNS), {0: "<script>", 1: "b"})
    result = EvaluationResult("runs:/1", "d" * 64, "1", "/t@0", "/tables/<t>", 3, "test", evaluation)
    mistakes = [Shown("x/<img>.jpg", "<script>", (("<b>", 0.5),))]
    page = render_page("page.html", result, plots={}, mistakes=mistakes, changes={}, thumbnail=thumbnail)
    for text in ("<script>", "<img>", "<t>", "<b>&"):
        assert text not in page
    assert "&lt;script&gt;" in page
