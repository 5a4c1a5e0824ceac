"""Rules of the scenes with boxes: which digits are drawn, where, and that an ingest reads back what was drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lakelens.etl.annotations.voc import parse_split_list, parse_voc
from lakelens.jobs.demo.digit_scenes import DigitScenes, write_voc

pytestmark = pytest.mark.unit


def test_only_digits_with_a_chance_are_drawn_and_their_boxes_lie_in_the_scene() -> None:
    scenes = DigitScenes(held_out=False, seed=1, side=96, chance=[0, 0, 1, 0, 0, 0, 0, 1, 0, 0])
    drawn = [scenes.draw() for _ in range(20)]
    assert {label for scene in drawn for label in scene.labels} == {2, 7}
    assert all(1 <= len(scene.boxes) <= 8 for scene in drawn)
    for left, top, right, bottom in (box for scene in drawn for box in scene.boxes):
        assert 0 <= left < right <= 96
        assert 0 <= top < bottom <= 96


def test_a_digit_stands_out_from_what_lies_under_it() -> None:
    scene = DigitScenes(held_out=False, seed=3, side=128).draw()
    for left, top, right, bottom in scene.boxes:
        part = scene.pixels[top:bottom, left:right].astype(float).mean(axis=2)
        assert np.ptp(part) > 40


def test_the_files_are_read_back_by_the_parser_of_an_ingest(tmp_path: Path) -> None:
    expected = DigitScenes(held_out=True, seed=5, side=96)
    scenes = DigitScenes(held_out=True, seed=5, side=96)
    write_voc(tmp_path, scenes, 4, "val", "digit {}".format)
    write_voc(tmp_path, scenes, 1, "train", "digit {}".format)
    files = sorted((tmp_path / "Annotations").glob("val_*.xml"))
    for file in files:
        scene, annotation = expected.draw(), parse_voc(file.read_bytes(), f"{file.stem}.jpg")
        assert not annotation.problems
        assert annotation.size == (96, 96)
        assert [box.corners for box in annotation.boxes] == scene.boxes
        assert [box.label_name for box in annotation.boxes] == [f"digit {label}" for label in scene.labels]
        with Image.open(tmp_path / "JPEGImages" / f"{file.stem}.jpg") as image:
            assert np.abs(np.asarray(image).astype(int) - scene.pixels).mean() < 8
    listed = list(parse_split_list((tmp_path / "ImageSets/Main/val.txt").read_text(), ""))
    assert listed == [file.stem for file in files]
    assert len(files) == 4
