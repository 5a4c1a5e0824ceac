"""The files that the demo starts from."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from PIL import Image

from lakelens.errors import EmptySourceError, SourceNotFoundError
from lakelens.etl.files.layouts import class_of_parts
from lakelens.jobs.cli import build_parser, main
from lakelens.jobs.demo.images import FIRST_FILES_OF_HELD_BACK, deliver, link_own, write_digits
from lakelens.jobs.demo.run import MARKER, run

pytestmark = pytest.mark.unit


def files_of(folder: Path) -> set[Path]:
    return {f.relative_to(folder) for f in folder.rglob("*") if f.is_file()}


def test_digits_are_jpeg_files_two_of_them_broken_and_those_of_a_held_back_class_arrive_later(tmp_path: Path) -> None:
    images = write_digits(tmp_path)
    assert images.files + images.late_files == 1797 + 2
    early, late = files_of(images.source), files_of(images.arrivals)
    assert {f.parent.name for f in late} == {"009.eight"}
    assert sum(f.parent.name == "009.eight" for f in early) == FIRST_FILES_OF_HELD_BACK
    deliver(images)
    assert files_of(images.source) == early | late
    assert not images.arrivals.exists()
    unreadable = set()
    for file in images.source.rglob("*.jpg"):
        assert re.fullmatch(r"\d{3}\.[a-z]+", file.parent.name)
        try:
            with Image.open(file) as image:
                image.load()
                assert (image.format, image.size) == ("JPEG", (96, 96))
        except OSError:
            unreadable.add(file)
    assert unreadable == set(images.broken)


def own_images(folder: Path, counts: dict[str, int]) -> Path:
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for index in range(count):
            Image.new("RGB", (8, 8), (index, 0, 0)).save(folder / name / f"{index}.png")
    return folder


def test_own_images_are_linked_and_the_largest_class_is_held_back(tmp_path: Path) -> None:
    own = own_images(tmp_path / "own", {"001.cat": 9, "002.dog": 12, ".hidden": 3})
    images = link_own(own, tmp_path / "out", limit_per_class=10)
    assert images.held_back == "dog"
    assert images.files == 9 + FIRST_FILES_OF_HELD_BACK
    assert images.late_files == 10 - FIRST_FILES_OF_HELD_BACK
    assert all(f.is_symlink() for f in images.source.rglob("*.png"))
    deliver(images)
    assert len(files_of(images.source)) == 19
    assert len(files_of(own)) == 9 + 12 + 3


@pytest.mark.parametrize("folder", ["1.cat", "01.cat", "001.cat", "001.", "cat.1"])
def test_the_held_back_class_has_the_name_that_the_table_gives_it(tmp_path: Path, folder: str) -> None:
    own = own_images(tmp_path / "own", {folder: 6, "dog": 3})
    assert link_own(own, tmp_path / "out", limit_per_class=10).held_back == class_of_parts(
        [folder, "1.png"], "class_folders"
    )


def test_own_images_need_a_folder_with_two_classes(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match=r"nothing is not a folder.*one subfolder per class"):
        link_own(tmp_path / "nothing", tmp_path / "out", 10)
    with pytest.raises(EmptySourceError, match=r"1 subfolders with images.*at least 2"):
        link_own(own_images(tmp_path / "own", {"cat": 3}), tmp_path / "out", 10)


def test_images_of_which_none_would_arrive_later_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "own" / name).mkdir(parents=True)
        for number in range(FIRST_FILES_OF_HELD_BACK + 1):
            (tmp_path / "own" / name / f"{number}.jpg").touch()
    assert link_own(tmp_path / "own", tmp_path / "enough", 400).late_files == 1
    with pytest.raises(EmptySourceError, match=r"no class has more than 4 images .*limit_per_class 4"):
        link_own(tmp_path / "own", tmp_path / "few", FIRST_FILES_OF_HELD_BACK)


@pytest.mark.parametrize(
    ("flags", "error", "words"),
    [
        (["--images", "demo/images"], "InvalidArgumentError", "lies in --out"),
        (["--images", "demo"], "InvalidArgumentError", "lies in --out"),
        (["--images", "nothing"], "SourceNotFoundError", "is not a folder"),
        (["--limit-per-class", "-1"], "InvalidArgumentError", "--limit-per-class -1 must be 1 or more"),
        (["--epochs", "0"], "InvalidArgumentError", "--epochs 0 must be 1 or more"),
        (["--detection", "--size", "32"], "InvalidArgumentError", "--size 32 must be 64 or more"),
        (["--detection", "--images", "demo/images"], "InvalidArgumentError", "does not go with --detection"),
        (["--detection", "--limit-per-class", "9"], "InvalidArgumentError", "--limit-per-class 9 does not go with"),
        (["--search", "--epochs", "3"], "InvalidArgumentError", "--epochs 3 does not go with --search"),
        (["--search", "--detection"], "InvalidArgumentError", "give one of them"),
        (["--detection", "--framework", "torch"], "InvalidArgumentError", "--framework torch is for the demo of"),
    ],
)
def test_an_earlier_demo_stays_when_the_flags_are_wrong(
    flags: list[str],
    error: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    earlier = own_images(tmp_path / "demo" / "images", {"0": 2, "1": 2})
    (tmp_path / "demo" / MARKER).touch()
    assert main(["demo", "--out", "demo", *flags]) == 2
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["error"], words in found["message"]) == (error, True)
    assert len(files_of(earlier)) == 4


def test_the_home_folder_of_images_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photos").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    args = build_parser().parse_args(["demo", "--images", "~/photos", "--out", str(tmp_path / "demo")])
    with pytest.raises(EmptySourceError, match="0 subfolders with images"):
        run(args)
