"""Rules of evaluating models on a table version, with a real MLflow store."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from colours import NAMES, image_of, mixed_model, mixer, read, row, save, write_table
from tqdm import tqdm

import lakelens
import lakelens.inference.evaluation.evaluate as evaluating
from lakelens.inference.model.shipping import prediction_task

pytestmark = pytest.mark.spark

ROWS = 12
GUIDE = Path(__file__).parents[3] / "docs" / "how-to" / "score.md"


def given(number):
    """Of version 0 each image is labelled by its colour, but the last, which shows red and is labelled blue."""
    if number == ROWS - 1:
        return row(number, "blue", data=image_of("red"))
    return row(number)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("evaluated") / "images"
    write_table(path, [given(number) for number in range(ROWS)])
    write_table(path, [row(number, split="train") for number in range(ROWS, ROWS + 3)])
    return path


@pytest.fixture(scope="module")
def wrong(tmp_path_factory):
    """A checkpoint that takes each colour for the next one."""
    return save(mixed_model(mixer(1)), tmp_path_factory.mktemp("wrong"))


@pytest.fixture(scope="module")
def story(spark, checkpoint, wrong, table, tmp_path_factory):
    """An evaluation against another model, then one of the same rows alone, with a predictions table."""
    root = tmp_path_factory.mktemp("story")
    kept = {"predictions": root / "predictions"}
    compared = lakelens.evaluate(
        *(spark, checkpoint.path, f"{table}@0"),
        compare=wrong.path,
        slices=["format"],
        out=root / "compared",
        custom_objects={"Mixer": mixer(1)},
        **kept,
    )
    alone = lakelens.evaluate(spark, checkpoint.path, table, 0, slices=["label_name"], out=root / "alone", **kept)
    return compared, alone, root


def test_metrics_slices_and_page_are_of_the_version_and_split_that_were_named(story):
    _, result, root = story
    assert (result.version, result.split, result.evaluation.rows) == (0, "test", ROWS)
    assert result.evaluation.accuracy == (ROWS - 1) / ROWS
    assert [one.name for one in result.evaluation.classes] == list(NAMES)
    assert result.evaluation.confusion.tolist() == [[4, 0, 0], [0, 4, 0], [1, 0, 3]]
    slices = {value: one.accuracy for value, one in result.slices["label_name"].items()}
    assert slices == {"red": 1.0, "green": 1.0, "blue": 0.75}
    assert 0 < result.evaluation.ece < 1
    page = (root / "alone" / "evaluation.html").read_text()
    assert result.page == str(root / "alone" / "evaluation.html")
    mistakes = page[page.index('id="mistakes"') :]
    assert mistakes.count('class="card"') == 1
    assert f"images/{ROWS - 1:05d}.jpg" in mistakes
    names = {"calibration", "classes", "confusion_matrix", "slice_label_name", "worst_mistakes"}
    assert {file.stem for file in (root / "alone").glob("*.png")} == names
    assert result.artifacts is None


def test_a_comparison_names_what_changed_and_a_predictions_table_keeps_the_answers(spark, checkpoint, wrong, story):
    first, again, root = story
    assert (first.other.accuracy, first.evaluation.accuracy) == (0.0, (ROWS - 1) / ROWS)
    found = first.comparison
    assert (found.rows, found.changed, found.fixed, found.broken) == (ROWS, ROWS, ROWS - 1, 0)
    assert found.p_value == pytest.approx(2 * 0.5 ** (ROWS - 1))
    assert {value: one.rows for value, one in first.slices["format"].items()} == {"jpeg": ROWS}
    page = (root / "compared" / "evaluation.html").read_text()
    assert "Wrong before, another wrong answer now" in page
    assert "F1 change" in page
    assert (root / "compared" / "comparison.png").stat().st_size > 10_000
    own = {"page", "slices", "compared", "comparison"}
    facts = [{name: fact for name, fact in one.as_facts().items() if name not in own} for one in (first, again)]
    assert facts[0] == facts[1]
    assert len(read(root / "predictions")) == 2 * ROWS
    (query,) = re.findall(r"^```sql\n(select path, .*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    for name, value in (("runs:/RUN", checkpoint.path), ("models:/photos@champion", wrong.path), ("= 1", "= 0")):
        assert name in query
        query = query.replace(name, str(value))
    changed = spark.sql(query.replace("predictions as", f"delta.`{root / 'predictions'}` as")).collect()
    assert len(changed) == ROWS
    assert [tuple(one) for one in changed if one["path"].endswith(f"images/{ROWS - 1:05d}.jpg")] == [
        (row(ROWS - 1)[0], "blue", "green", "red")
    ]


def test_progress_is_shown_where_the_log_does_not_tell_how_many_rows_a_split_has_and_tasks_run_elsewhere(
    spark, checkpoint, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(
        evaluating, "prediction_task", lambda model, _, done: prediction_task(model, "/elsewhere", done)
    )
    write_table(tmp_path / "images", [given(number) for number in range(ROWS)], partition_by=())
    monkeypatch.setattr("lakelens.progress.in_notebook", lambda: True)
    monkeypatch.setattr("lakelens.progress._bar_class", lambda: tqdm)
    found = lakelens.evaluate(spark, checkpoint.path, tmp_path / "images", slices=["label_name"], record=False)
    slices = {value: one.accuracy for value, one in found.slices["label_name"].items()}
    assert slices == {"red": 1.0, "green": 1.0, "blue": 0.75}
    assert "12.0/12.0 [" in capsys.readouterr().err
