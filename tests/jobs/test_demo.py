"""The demo: its files, its flags, and that everything it claims is read back from what it has left behind."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from child_processes import run_to_end
from connect_server import connect_server
from PIL import Image

from lakelens.errors import EmptySourceError
from lakelens.jobs.cli import build_parser, main
from lakelens.jobs.demo import FIRST_FILES_OF_HELD_BACK, MARKER, deliver, link_own, run, write_digits


def files_of(folder: Path) -> set[Path]:
    return {f.relative_to(folder) for f in folder.rglob("*") if f.is_file()}


@pytest.mark.unit
def test_digits_are_jpeg_files_two_of_them_broken_and_those_of_a_held_back_class_arrive_later(tmp_path):
    images = write_digits(tmp_path)
    early, late = files_of(images.source), files_of(images.arrivals)
    assert len(early) + len(late) == 1797 + 2
    assert {f.parent.name for f in late} == {"009.eight"}
    assert sum(f.parent.name == "009.eight" for f in early) == FIRST_FILES_OF_HELD_BACK
    assert deliver(images) == len(late)
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


@pytest.mark.unit
def test_own_images_are_linked_and_the_largest_class_is_held_back(tmp_path):
    own = own_images(tmp_path / "own", {"001.cat": 9, "002.dog": 12, ".hidden": 3})
    images = link_own(own, tmp_path / "out", limit=10)
    assert images.held_back == "dog"
    assert len(files_of(images.source)) == 9 + FIRST_FILES_OF_HELD_BACK
    assert len(files_of(images.arrivals)) == 10 - FIRST_FILES_OF_HELD_BACK
    assert all(f.is_symlink() for f in images.source.rglob("*.png"))
    deliver(images)
    assert len(files_of(images.source)) == 19
    assert len(files_of(own)) == 9 + 12 + 3


@pytest.mark.unit
@pytest.mark.parametrize(
    ("folder", "other", "name"),
    [
        ("1.cat", "2.dog", "1.cat"),
        ("001.cat", "002.dog", "cat"),
        ("001.cat", "dog", "001.cat"),
        ("cat.1", "dog", "cat.1"),
    ],
)
def test_the_held_back_class_has_the_name_that_the_table_gives_it(tmp_path, folder, other, name):
    own = own_images(tmp_path / "own", {folder: 6, other: 3})
    assert link_own(own, tmp_path / "out", limit=10).held_back == name


@pytest.mark.unit
@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"cat": 9}, "1 subfolders with images; the demo needs at least 2"),
        ({}, "0 subfolders with images"),
        ({"cat": FIRST_FILES_OF_HELD_BACK, "dog": 2}, "one of them with more than 4 images"),
    ],
)
def test_own_images_need_two_classes_and_one_of_which_images_can_arrive_later(tmp_path, counts, words):
    (tmp_path / "own").mkdir()
    with pytest.raises(EmptySourceError, match=words):
        link_own(own_images(tmp_path / "own", counts), tmp_path / "out")
    own_images(tmp_path / "own", {"eel": FIRST_FILES_OF_HELD_BACK + 1, "fox": 1})
    assert len(files_of(link_own(tmp_path / "own", tmp_path / "out", limit=5).arrivals)) > 0


@pytest.mark.unit
@pytest.mark.parametrize(
    ("flags", "error", "words"),
    [
        (["--images", "demo/images"], "InvalidArgumentError", "lies in --out"),
        (["--images", "demo"], "InvalidArgumentError", "lies in --out"),
        (["--images", "nothing"], "SourceNotFoundError", "is not a folder"),
        (["--epochs", "0"], "InvalidArgumentError", "--epochs 0 must be 1 or more"),
        (["--size", "-1"], "InvalidArgumentError", "--size -1 and --epochs 8 must be 1 or more"),
    ],
)
def test_an_earlier_demo_stays_when_the_flags_are_wrong(flags, error, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    earlier = own_images(tmp_path / "demo" / "images", {"0": 2, "1": 2})
    (tmp_path / "demo" / MARKER).touch()
    assert main(["demo", "--out", "demo", *flags]) == 2
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["error"], words in found["message"]) == (error, True)
    assert len(files_of(earlier)) == 4


@pytest.mark.unit
def test_a_folder_that_the_demo_did_not_make_is_never_removed(tmp_path, capsys):
    (tmp_path / "precious.txt").write_text("keep")
    assert main(["demo", "--out", str(tmp_path)]) == 2
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["error"] == "InvalidArgumentError"
    assert (tmp_path / "precious.txt").read_text() == "keep"


@pytest.mark.unit
def test_the_home_folder_of_images_is_found(tmp_path, monkeypatch):
    (tmp_path / "photos").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    args = build_parser().parse_args(["demo", "--images", "~/photos", "--out", str(tmp_path / "demo")])
    with pytest.raises(EmptySourceError, match="0 subfolders with images"):
        run(args)


def demo(out: Path, **variables: str) -> tuple[str, dict]:
    options = os.environ.get("JAVA_TOOL_OPTIONS", "").split()
    users = " ".join(option for option in options if not option.startswith("-Dspark."))
    command = [sys.executable, "-m", "lakelens.jobs.cli", "demo", "--out", str(out)]
    done = run_to_end(command, timeout=900, env={**os.environ, "JAVA_TOOL_OPTIONS": users, **variables})
    return done.stdout, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.spark
@pytest.mark.horovod
@pytest.mark.long
@pytest.mark.timeout(1000)
def test_the_demo_shows_that_the_data_version_made_the_difference(tmp_path):
    out = tmp_path / "demo"
    said, summary = demo(out)
    assert summary["versions"] == [0, 1]
    for counts in summary["rows"]:
        assert counts["in"] == counts["stored"] + counts["quarantined"] + counts["skipped"]
    assert summary["rows"][0] == {"in": 1629, "stored": 1627, "quarantined": 2, "skipped": 0}
    assert summary["rows"][1] == {"in": 1799, "stored": 170, "quarantined": 0, "skipped": 1629}
    assert summary["recall_after"] > summary["recall_before"] + 0.3
    assert summary["accuracy_after"] >= 0.95
    assert summary["version_0_unchanged"] is True
    assert "quarantined: 001_truncated.jpg: truncated" in said
    assert summary["most_improved_class"] == "eight"
    assert (out / "evaluation" / "comparison.png").stat().st_size > 10_000
    assert "The class that gained most is <b>eight</b>" in (out / "evaluation" / "evaluation.html").read_text()

    from snapshots import open_snapshot

    from lakelens.tracking.runs import open_client

    assert open_snapshot(str(out / "tables" / "images"), 0).rows == 1627
    assert open_snapshot(summary["predictions"]["path"]).rows == summary["predictions"]["rows"]
    client = open_client(f"sqlite:///{out / 'mlflow.db'}")
    assert [client.get_run(run).data.tags["lakelens.version"] for run in summary["runs"]] == ["0", "1"]


@pytest.mark.spark
@pytest.mark.horovod
@pytest.mark.long
@pytest.mark.timeout(1000)
def test_the_demo_runs_on_a_spark_connect_server(tmp_path):
    with connect_server(tmp_path) as url:
        said, summary = demo(tmp_path / "demo", SPARK_REMOTE=url)
    assert summary["versions"] == [0, 1]
    assert summary["recall_after"] > summary["recall_before"] + 0.3
    assert summary["version_0_unchanged"] is True
    assert f"Spark on {url}, and Delta Lake" in said
    assert "--master" not in said
