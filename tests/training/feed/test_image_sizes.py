"""A training without image_size needs images of one size, and says which row's file has another."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from feed_tables import HEIGHT, WIDTH, append, image_rows

from lakelens import DeltaFeed
from lakelens.errors import InvalidArgumentError
from lakelens.training.experiment.train import train
from lakelens.training.feed.image_sizes import size_of_all_images

pytestmark = pytest.mark.unit


def with_widths(numbers: range, widths: list[int | None], split: str = "train") -> pa.Table:
    return image_rows(numbers, split=split).set_column(4, "width", pa.array(widths, pa.int32()))


def table_of(location: Path, *tables: pa.Table) -> Path:
    for rows in tables:
        append(location, rows, row_group_rows=2)
    return location


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        (
            [with_widths(range(4), [WIDTH] * 4), with_widths(range(4, 8), [WIDTH, WIDTH, WIDTH, 20])],
            rf"\.parquet has an image of 12 x 20 pixels, the first one is 12 x 16; .* image_size=\(12, {WIDTH}\)",
        ),
        ([with_widths(range(4), [WIDTH, None, WIDTH, WIDTH])], "rows without the size of their image"),
        ([image_rows(range(4)).drop(["height"])], r"without the size .* \(columns height and width\); .* image_size="),
        (
            [image_rows(range(4)), with_widths(range(4, 8), [20] * 4, split="validation")],
            "has an image of 12 x 20 pixels",
        ),
    ],
)
def test_a_training_on_images_of_mixed_or_unknown_sizes_needs_image_size(tmp_path, tables, words):
    location = table_of(tmp_path / "t", *tables)
    validation = "validation" if "validation" in tables[-1]["split"].to_pylist() else None
    with pytest.raises(InvalidArgumentError, match=words):
        train(
            location,
            tracking_uri=f"sqlite:///{tmp_path}/mlflow.db",
            config={
                "data": {"class_names": ["a"] * 8, "validation_split": validation},
                "checkpoint_storage": {"path": str(tmp_path / "checkpoints")},
            },
        )
    assert not (tmp_path / "mlflow.db").exists()


def test_images_of_one_size_stay_as_they_are_whatever_other_rows_of_the_table_have(tmp_path):
    other = with_widths(range(4, 8), [20] * 4, split="test")
    location = table_of(tmp_path / "t", image_rows(range(4)), other)
    assert size_of_all_images([DeltaFeed(location, split="train").plan]) == (HEIGHT, WIDTH)
    assert size_of_all_images([DeltaFeed(location, filters={"label": [1, 3]}).plan]) == (HEIGHT, WIDTH)
    with pytest.raises(InvalidArgumentError, match="12 x 20"):
        size_of_all_images([DeltaFeed(location, filters={"label": [1, 3, 5]}).plan])
