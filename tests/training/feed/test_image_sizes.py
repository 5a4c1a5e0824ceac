"""A training without image_size needs images of one size, and says which row's file has another."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from feed_tables import HEIGHT, WIDTH, append, changed, image_rows

from lakelens import DeltaFeed
from lakelens.errors import InvalidArgumentError
from lakelens.training.experiment.train import train
from lakelens.training.feed.image_plan import size_of_all_images

pytestmark = pytest.mark.unit

OTHER = [WIDTH, WIDTH, WIDTH, 20]


def table_of(location: Path, *widths: list[int | None], split: str = "train") -> Path:
    """A file of four rows for each list of widths; the last one of a split of its own."""
    for part, given in enumerate(widths, 1):
        rows = image_rows(range(4 * part - 4, 4 * part), split=split if part == len(widths) else "train")
        append(location, changed(rows, width=pa.array(given, pa.int32())), row_group_rows=2)
    return location


def size_of(location: Path, *splits: str | None, **options: object) -> tuple[int, int]:
    return size_of_all_images([DeltaFeed(location, split=split, **options).plan for split in splits])


def test_a_training_on_images_of_mixed_sizes_needs_image_size(tmp_path):
    location = table_of(tmp_path / "t", [WIDTH] * 4, OTHER)
    config = {"data": {"class_names": ["a"] * 8, "validation_split": None}}
    words = rf"\.parquet has an image of 12 x 20 pixels, the first one is 12 x 16; .* image_size=\(12, {WIDTH}\)"
    with pytest.raises(InvalidArgumentError, match=words):
        train(location, tracking_uri=f"sqlite:///{tmp_path}/mlflow.db", config=config)
    assert not (tmp_path / "mlflow.db").exists()


def test_rows_without_a_size_are_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match="rows without the size of their image"):
        size_of(table_of(tmp_path / "nulls", [WIDTH, None, WIDTH, WIDTH]), None)
    append(tmp_path / "t", image_rows(range(4)).drop(["height"]))
    with pytest.raises(InvalidArgumentError, match=r"without the size .* \(columns height and width\); .* image_size="):
        size_of(tmp_path / "t", None)


def test_the_rows_of_all_feeds_count_and_no_others(tmp_path):
    location = table_of(tmp_path / "t", [WIDTH] * 4, [20] * 4, split="test")
    assert size_of(location, "train") == size_of(location, None, filters={"label": [1, 3]}) == (HEIGHT, WIDTH)
    for splits, options in ((["train", "test"], {}), ([None], {"filters": {"label": [1, 3, 5]}})):
        with pytest.raises(InvalidArgumentError, match="has an image of 12 x 20 pixels"):
            size_of(location, *splits, **options)
