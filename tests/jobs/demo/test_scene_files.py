"""Rules of the scenes' files: the parsers of an ingest read back what was drawn."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lakelens.etl.annotations.coco import find_coco_files, read_coco
from lakelens.etl.annotations.record import Annotation
from lakelens.etl.annotations.voc import parse_split_list, parse_voc
from lakelens.jobs.demo.digit_scenes import DigitScenes
from lakelens.jobs.demo.scene_files import write_coco, write_voc

pytestmark = pytest.mark.unit


def scenes() -> DigitScenes:
    return DigitScenes(held_out=True, seed=5, side=96)


def assert_as_drawn(annotations: Iterable[Annotation], images: Path) -> None:
    expected = scenes()
    for annotation in annotations:
        scene = expected.draw()
        assert not annotation.problems
        assert annotation.size == (96, 96)
        assert [box.corners for box in annotation.boxes] == scene.boxes
        assert [box.label_name for box in annotation.boxes] == [f"digit {label}" for label in scene.labels]
        with Image.open(images / annotation.path.rpartition("/")[2]) as image:
            assert np.abs(np.asarray(image).astype(int) - scene.pixels).mean() < 8


def test_voc_is_read_back_by_the_parser_of_an_ingest(tmp_path: Path) -> None:
    write_voc(tmp_path, scenes(), 4, "val", "digit {}".format)
    write_voc(tmp_path, scenes(), 1, "train", "digit {}".format)
    files = sorted((tmp_path / "Annotations").glob("val_*.xml"))
    assert_as_drawn([parse_voc(file.read_bytes(), f"{file.stem}.jpg") for file in files], tmp_path / "JPEGImages")
    listed = list(parse_split_list((tmp_path / "ImageSets/Main/val.txt").read_text(), ""))
    assert listed == [file.stem for file in files]


def test_coco_is_read_back_by_the_parser_of_an_ingest(tmp_path: Path) -> None:
    write_coco(tmp_path, scenes(), 4, "train", "digit {}".format)
    write_coco(tmp_path, scenes(), 1, "val", "digit {}".format)
    names = [str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.json")]
    (found,) = (one for one in find_coco_files(names) if one.split == "train")
    instances = read_coco(io.BytesIO((tmp_path / found.path).read_bytes()), found.path)
    annotations = list(instances.annotations(f"{found.image_folders[0]}/{{}}".format))
    assert len(annotations) == 4
    assert_as_drawn(annotations, tmp_path / "train")
