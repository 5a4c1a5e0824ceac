"""Rules of the scenes with boxes: an ingest reads them, boxes lie on their digits, later scenes join the earlier."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lakelens.etl.annotations.voc import parse_split_list, parse_voc
from lakelens.jobs.demo.digit_scenes import DigitScenes, write_voc

pytestmark = pytest.mark.unit


def test_scenes_are_read_back_by_the_parser_of_an_ingest(tmp_path: Path) -> None:
    write_voc(tmp_path, DigitScenes(held_out=True, seed=5, side=96), 4, "val")
    expected = DigitScenes(held_out=True, seed=5, side=96)
    for path in sorted((tmp_path / "Annotations").iterdir()):
        scene, annotation = expected.draw(), parse_voc(path.read_bytes(), "p")
        assert not annotation.problems
        assert annotation.size == (96, 96)
        assert [box.corners for box in annotation.boxes] == scene.boxes
        assert [box.label_name for box in annotation.boxes] == [str(label) for label in scene.labels]
        for left, top, right, bottom in scene.boxes:
            assert 0 <= left < right <= 96
            assert 0 <= top < bottom <= 96


def test_later_scenes_join_the_earlier_ones_of_their_split(tmp_path: Path) -> None:
    scenes = DigitScenes(held_out=False, seed=1, side=96, chance=[0, 0, 1, 0, 0, 0, 0, 1, 0, 0])
    write_voc(tmp_path, scenes, 3, "train")
    write_voc(tmp_path, scenes, 2, "train")
    listed = list(parse_split_list((tmp_path / "ImageSets/Main/train.txt").read_text(), ""))
    assert len(set(listed)) == 5
    assert len(list((tmp_path / "JPEGImages").iterdir())) == 5
    drawn = {label for _ in range(20) for label in scenes.draw().labels}
    assert drawn == {2, 7}


def test_a_digit_stands_out_from_what_lies_under_it() -> None:
    scene = DigitScenes(held_out=False, seed=3, side=128).draw()
    for left, top, right, bottom in scene.boxes:
        part = scene.pixels[top:bottom, left:right].astype(float).mean(axis=2)
        assert np.ptp(part) > 40
