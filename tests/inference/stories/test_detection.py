"""Rules of detection: scored boxes, metrics, comparison, models of the wrong task."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from boxes import HEIGHT, SIDE, WIDTH, image_with, save_detector, truth_of, write_boxes
from colours import read, row, write_table
from deltalake import DeltaTable
from mlflow_stores import put_store
from PIL import Image

from lakelens import ImageTable
from lakelens.errors import InvalidArgumentError, ModelMismatchError, NotAnImageTableError, PredictionsSchemaError
from lakelens.inference.evaluation.evaluate import evaluate
from lakelens.inference.scoring.score import score
from lakelens.inference.trace import trace
from lakelens.inference.udf import predict_udf
from lakelens.jobs.run_lines import evaluation_lines

pytestmark = pytest.mark.spark

# None is an image that nobody has annotated.
IMAGES = [[("red", 0, 0), ("blue", 3, 2)], [("red", 7, 3)], [("blue", 5, 1), ("blue", 1, 1), ("red", 3, 0)], [], None]
OBJECTS = 6
# Of each EXIF orientation of a file, its squares.
PHOTOS = {1: [("red", 5, 1)], 6: [("red", 0, 2), ("red", 6, 1)], 7: [("red", 3, 3)]}
GUIDE = Path(__file__).parents[3] / "docs/how-to/score.md"


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("tables") / "boxes"
    write_boxes(path, IMAGES)
    return path


@pytest.fixture(scope="module")
def detector(tmp_path_factory):
    return save_detector(tmp_path_factory.mktemp("detectors"))


@pytest.fixture(scope="module")
def scored(spark, table, detector, tmp_path_factory):
    predictions = tmp_path_factory.mktemp("predictions") / "boxes"
    return score(spark, detector.path, table, predictions), predictions


@pytest.fixture(scope="module")
def photos(spark, tmp_path_factory):
    """An ingest of files that EXIF turns, letterboxed to half their size."""
    folder = tmp_path_factory.mktemp("photos")
    listed = []
    for orientation, squares in PHOTOS.items():
        (folder / f"{orientation}.png").write_bytes(image_with(squares, orientation))
        listed.append({"path": f"{orientation}.png", "boxes": [truth_of(square) for square in squares]})
    (folder / "boxes.json").write_text(json.dumps(listed))
    table = ImageTable(spark, folder / "table")
    result = table.ingest(
        folder / "boxes.json", "manifest", size=SIDE, store="raw_rgb", splits={"test": 1}, boxes_drawn_on="file"
    )
    assert (result.stored, result.quarantined) == (len(PHOTOS), 0)
    return table


@pytest.fixture(scope="module")
def scored_photos(spark, photos, detector, tmp_path_factory):
    predictions = tmp_path_factory.mktemp("predictions") / "photos"
    score(spark, detector.path, photos.location, predictions)
    return predictions


def orientation_of(path):
    return int(Path(path).stem)


def as_truths(detections):
    return sorted(
        ({name: value for name, value in box.items() if name != "score"} for box in detections),
        key=lambda box: (box["xmin"], box["ymin"]),
    )


def truths_of(squares):
    return sorted(map(truth_of, squares or ()), key=lambda box: (box["xmin"], box["ymin"]))


def test_scored_boxes_are_in_pixels_of_the_image_where_no_file_is_recorded(scored, table, detector):
    result, predictions = scored
    assert (result.scored, result.errors) == (len(IMAGES), 0)
    rows = read(predictions)
    assert [as_truths(one["detections"]) for one in rows] == [truths_of(squares) for squares in IMAGES]
    for box in (box for one in rows for box in one["detections"]):
        assert 0.5 < box["score"] <= 1
        assert 0 <= box["xmin"] < box["xmax"] <= WIDTH
        assert 0 <= box["ymin"] < box["ymax"] <= HEIGHT
    assert {one["checkpoint_digest"] for one in rows} == {detector.digest}
    assert {(one["table"], one["version"]) for one in rows} == {(str(table), 0)}


def test_the_udf_gives_boxes_and_an_error_for_a_row_without_an_image(spark, detector):
    udf = predict_udf(spark, detector.path)
    images = [(0, image_with(IMAGES[0])), (1, b"no image"), (2, image_with([("red", 0, 2)], orientation=6))]
    rows = spark.createDataFrame(images, "number INT, image BINARY").coalesce(1)
    good, bad, turned = (one.p for one in rows.select("number", udf("image").alias("p")).orderBy("number").collect())
    assert as_truths(one.asDict() for one in good.detections) == truths_of(IMAGES[0])
    assert good.error is None
    # Upright, as the table's own boxes would be: EXIF turns the file's left edge to the top.
    assert [tuple(box)[3:] for box in turned.detections] == [(16, 0, 32, 16)]
    assert bad.detections is None
    assert bad.error.startswith("not_an_image")


def test_boxes_of_an_ingest_lie_on_the_objects_in_the_pixels_of_the_source_file(scored_photos, tmp_path):
    rows = read(scored_photos)
    assert {orientation_of(one["path"]): as_truths(one["detections"]) for one in rows} == {
        orientation: truths_of(squares) for orientation, squares in PHOTOS.items()
    }
    for one in rows:
        (traced,) = trace(scored_photos, one["path"], tracking_uri=put_store(tmp_path))
        upright = (WIDTH, HEIGHT) if orientation_of(one["path"]) == 1 else (HEIGHT, WIDTH)
        assert tuple(traced.source["source"].values()) == (*upright, orientation_of(one["path"]), "fit")
        with Image.open(traced.source["path"].removeprefix("file:")) as file:
            pixels = np.asarray(file.convert("RGB"), int)
        for box in traced.prediction["detections"]:
            left, top, right, bottom = (round(box[name]) for name in ("xmin", "ymin", "xmax", "ymax"))
            red = (pixels[..., 0] > 200) & (pixels[..., 1] < 100)
            assert red[top:bottom, left:right].all()


def test_the_guides_udf_gives_boxes_in_pixels_of_the_file(spark, photos, detector):
    (line,) = re.findall(r"```python\n(boxes = .*?)```", GUIDE.read_text(), re.DOTALL)
    names = {"table": photos, "version": 0, "predict": predict_udf(spark, detector.path)}
    exec(line, names)  # noqa: S102  the line of the page
    found = {
        orientation_of(one.path): as_truths(box.asDict() for box in one.detections) for one in names["boxes"].collect()
    }
    assert found == {orientation: truths_of(squares) for orientation, squares in PHOTOS.items()}


def test_an_evaluation_compares_boxes_of_the_file_with_those_of_the_stored_image(
    spark, photos, detector, scored_photos
):
    for predictions in (scored_photos, None):
        found = evaluate(spark, detector.path, photos.location, predictions=predictions, record=False).evaluation
        assert (found.rows, found.objects, found.scores["map"]) == (len(PHOTOS), 4, 1)


def test_the_guides_query_counts_the_objects_of_each_class_and_day(spark, scored):
    (query,) = re.findall(r"```sql\n(select date.*?)```", GUIDE.read_text(), re.DOTALL)
    spark.read.format("delta").load(str(scored[1])).createOrReplaceTempView("predictions")
    rows = spark.sql(query).collect()
    assert sorted((row.label_name, row.objects) for row in rows) == [("blue", 3), ("red", 3)]
    assert None not in {row.day for row in rows}


def test_an_evaluation_has_precision_by_class_and_compares_two_detectors(spark, table, detector, scored, tmp_path):
    blind = save_detector(tmp_path / "blind", kinds=["red"])
    out = tmp_path / "out"
    found = evaluate(spark, detector.path, table, compare=blind.path, out=out, predictions=scored[1], slices=["width"])
    assert (found.evaluation.rows, found.evaluation.unlabelled, found.evaluation.objects) == (4, 1, OBJECTS)
    assert found.evaluation.scores["map50"] == found.evaluation.scores["map"] == 1
    assert [(one.name, one.objects, one.ap50) for one in found.other.classes] == [("red", 3, 1), ("blue", 3, 0)]
    assert (found.other.scores["map50"], found.other.scores["recall50"]) == (0.5, 0.5)
    assert found.slices["width"][str(WIDTH)].scores == found.evaluation.scores
    assert (found.comparison.fixed, found.comparison.broken, found.comparison.most_improved_class) == (2, 0, "blue")
    page = (out / "evaluation.html").read_text()
    assert "gained most is <b>blue</b>" in page
    # Of four images two are the worst and two the best; two have changed, with the boxes of both models.
    assert page.count("data:image/jpeg") == 4 + 2 * 2
    assert any(line.split()[:3] == ["blue", "3", "3"] for line in evaluation_lines(found))
    # What was scored before was not scored again.
    assert [one["checkpoint_digest"] for one in read(scored[1])].count(detector.digest) == len(IMAGES)


def test_a_model_of_another_task_is_refused(spark, table, detector, scored, checkpoint, tmp_path):
    before = DeltaTable(scored[1]).version()
    with pytest.raises(ModelMismatchError, match="one of classification; compare models of one task"):
        evaluate(spark, detector.path, table, compare=checkpoint.path)
    with pytest.raises(PredictionsSchemaError, match="'prediction', so it is not a predictions table of class"):
        score(spark, checkpoint.path, table, scored[1])
    colours = tmp_path / "colours"
    write_table(colours, [row(0)])
    with pytest.raises(ModelMismatchError, match=r"no column 'annotations'.*evaluate a model of task classification"):
        evaluate(spark, detector.path, colours)
    with pytest.raises(ModelMismatchError, match=r"have boxes instead of labels.*evaluate a model of task detection"):
        evaluate(spark, checkpoint.path, table)
    unlabelled = tmp_path / "unlabelled"
    write_boxes(unlabelled, [None])
    with pytest.raises(ModelMismatchError, match="none of 1 rows has annotations"):
        evaluate(spark, detector.path, unlabelled)
    cornerless = tmp_path / "cornerless"
    write_boxes(cornerless, IMAGES, pa.list_(pa.struct([("label", pa.int32())])))
    with pytest.raises(NotAnImageTableError, match=r"array<struct<label:integer>>; task detection needs"):
        evaluate(spark, detector.path, cornerless)
    assert DeltaTable(scored[1]).version() == before


def test_boxes_of_images_that_were_scored_are_copied_to_the_next_version(spark, detector, tmp_path):
    table, predictions = tmp_path / "grown", tmp_path / "predictions"
    for first, carried in ((0, 0), (2, 2)):
        write_boxes(table, IMAGES[first : first + 2], first=first)
        result = score(spark, detector.path, table, predictions)
        assert (result.scored, result.carried, result.commits) == (2, carried, 1)
    found = [as_truths(one["detections"]) for one in read(predictions) if one["version"] == 1]
    assert found == [truths_of(squares) for squares in IMAGES[:4]]


def test_a_score_table_has_only_the_boxes_of_the_least_score_and_is_not_evaluated(spark, table, tmp_path):
    faint = save_detector(tmp_path / "faint", faint=["blue"])
    predictions, fewest = tmp_path / "sure", tmp_path / "fewest"
    # As in training, boxes are read by the names of their fields: of these there are no more than needed.
    corners = [(name, pa.float64()) for name in ("xmin", "xmax", "ymin", "ymax")]
    write_boxes(fewest, IMAGES, pa.list_(pa.struct([*corners, ("label", pa.int64())])))
    page = evaluate(spark, faint.path, fewest, out=tmp_path / "out")
    assert (page.evaluation.objects, page.evaluation.scores["map"]) == (OBJECTS, 1)
    assert [one.name for one in page.evaluation.classes] == ["red", "blue"]
    best = page.evaluation.best_point
    assert 0.4 < best.score < 0.93
    assert best.f1 == 1
    (named,) = re.findall(r"lakelens score --min-score ([\d.]+)</code>", Path(page.page).read_text())
    assert 0 <= best.score - float(named) < 0.001
    assert score(spark, faint.path, table, predictions, min_score=0.95).scored == len(IMAGES)
    assert score(spark, faint.path, table, predictions, min_score=0.95).scored == 0
    reds = [[square for square in squares or () if square[0] == "red"] for squares in IMAGES]
    assert [as_truths(one["detections"]) for one in read(predictions)] == [truths_of(squares) for squares in reds]
    kept = r"sure keeps only boxes with a score of at least 0\.95 \(--min-score 0\.95\); this call writes "
    with pytest.raises(PredictionsSchemaError, match=f"{kept}boxes from 0.97 on"):
        score(spark, faint.path, table, predictions, min_score=0.97)
    for call in (score, evaluate):
        with pytest.raises(PredictionsSchemaError, match=f"{kept}all boxes, as every evaluation does"):
            call(spark, faint.path, table, predictions=predictions)


def test_a_least_score_is_a_number_that_a_detection_can_have(spark, table, detector, checkpoint):
    for given in (0.01, 1.5, math.nan, "0.5", True):
        with pytest.raises(InvalidArgumentError, match=r"min_score=.*: give a number from 0\.05 to 1"):
            score(spark, detector.path, table, min_score=given)
    with pytest.raises(InvalidArgumentError, match=r"min_score is for boxes; .* is a model of task classification"):
        score(spark, checkpoint.path, table, min_score=0.5)


def test_a_detector_that_finds_nothing_is_evaluated_with_a_warning_and_its_worst_images_are_shown_with_their_boxes(
    spark, table, tmp_path, caplog
):
    blind = save_detector(tmp_path / "blind", kinds=[])
    found = evaluate(spark, blind.path, table, out=tmp_path / "out")
    assert found.evaluation.scores["map50"] == 0
    assert "no detection with a score of at least" in caplog.text
    shown = sorted(path.name for path in (tmp_path / "out").glob("*.jpg"))
    assert shown == ["best_00.jpg", "best_01.jpg", "worst_00.jpg", "worst_01.jpg"]
    page = (tmp_path / "out" / "evaluation.html").read_text()
    assert [f"{missed} missed, 0 invented" in page for missed in (0, 1, 2, 3)] == [True] * 4
