"""Rules of an evaluation's pictures and page."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from colours import image_of
from PIL import Image

from lakelens.etl.images.stored_image import StoredImage
from lakelens.inference.evaluation.comparison import compare
from lakelens.inference.evaluation.evaluator import name_of
from lakelens.inference.evaluation.metrics import measure
from lakelens.inference.evaluation.plots import (
    MOST_CLASSES_DRAWN,
    comparison_figure,
    draw_comparison,
    draw_plots,
    draw_slices,
    thumbnail,
)
from lakelens.inference.evaluation.report import render_page
from lakelens.inference.evaluation.result import EvaluationResult, Shown
from lakelens.training.checkpoints.references import ModelRef

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


def page_of(result, mistakes=()):
    values = {"plots": {}, "mistakes": mistakes, "changes": {}, "thumbnail": thumbnail, "pair": ("", "")}
    return render_page("page.html", result, "birds", **values)


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
    page = page_of(result, mistakes)
    for text in ("<script>", "<img>", "<t>", "<b>&"):
        assert text not in page
    assert "&lt;script&gt;" in page


def test_the_title_has_names_and_a_date_and_the_ids_are_below_it():
    result = EvaluationResult("runs:/1234", "d" * 64, "1234", "/tables/t@0", "/tables/t", 3, "test", evaluated(2)[0])
    page = page_of(result)
    (title,) = re.findall("<title>(.*)</title>", page)
    assert re.fullmatch(r"birds on t@3, split test, \d{4}-\d\d-\d\d", title)
    (below,) = re.findall('<p class="where">(.*)</p>', page)
    assert below == f"runs:/1234 · checkpoint {'d' * 12} · trained on version 0 · evaluated on /tables/t@3"


def test_a_class_of_few_rows_is_marked_and_each_recall_has_its_interval():
    counts = [(0, 0, 0, 9, 19, 9.0), (1, 1, 0, 9, 15, 9.0), (1, 0, 1, 9, 5, 3.0)]
    evaluation = measure(pd.DataFrame(counts, columns=COLUMNS), {0: "rare", 1: "common", 2: "absent"})
    page = page_of(EvaluationResult("runs:/1", "d" * 64, "1", None, "/t", 3, None, evaluation))
    assert "▲ 1 class with fewer than 20 rows" in page
    cells = [re.findall("<td[^>]*>(.*?)</td>", row) for row in re.findall("<tr>(.*?)</tr>", page, re.DOTALL)]
    rows = {row[0]: row[2:6] for row in cells if row and row[0] in ("rare", "common", "absent")}
    assert rows == {
        "rare": ["▲ 19", "0.792", "1.000", "0.83 to 1.00"],
        "common": ["20", "1.000", "0.750", "0.53 to 0.89"],
        "absent": ["0", "-", "-", "-"],
    }
    for words in ("calibration error</span><small>", "macro F1</span><small>"):
        assert words in page
    assert "Not counted" not in page


@pytest.mark.parametrize(
    ("uri", "run_name", "name"),
    [
        ("models:/birds@champion", "night run", "birds@champion"),
        ("experiment:birds?metric=val_loss", "night run", "birds"),
        ("experiment:12", "night run", "night run"),
        ("runs:/0123456789abcdef0123456789abcdef", "night run", "night run"),
        ("runs:/0123456789abcdef0123456789abcdef", None, "01234567"),
        ("/data/checkpoints/epoch-0003", None, "checkpoints/epoch-0003"),
    ],
)
def test_a_model_is_named_as_people_know_it(uri, run_name, name):
    assert name_of(ModelRef(uri, Path("/c"), "d" * 64, None, {}, run_name=run_name)) == name
