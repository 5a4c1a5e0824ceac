"""Rules of a folder that several tasks list, each for itself."""

from __future__ import annotations

import os
import shutil

import pyarrow as pa
import pytest
from etl_pictures import write_image

from lakelens.errors import SourceNotFoundError
from lakelens.etl.files import Wanted, list_below
from lakelens.etl.model import schema
from lakelens.etl.sources.folders import list_share
from lakelens.etl.sources.source import IGNORED, raise_refusal

pytestmark = pytest.mark.unit

TASKS = 4


def listed(root, change):
    """Lists a folder by four tasks, of which the last one sees it after a change; returns names and reasons."""
    rows = []
    for task in range(TASKS):
        if task == TASKS - 1:
            change()
        one = pa.record_batch([pa.array([task], pa.int64())], ["id"])
        batches = list_share([one], os.fsencode(root), TASKS, Wanted("class_folders"))
        rows += [row for batch in batches for row in batch.to_pylist()]
    reasons = {row[IGNORED] for row in rows if row[IGNORED]}
    return sorted(row[schema.PATH].rpartition("/")[2] for row in rows if row[IGNORED] is None), reasons


@pytest.fixture
def folder(tmp_path):
    for number in range(12):
        write_image(tmp_path / "source" / f"class {number}" / f"{number}.jpg", seed=number)
    return tmp_path / "source"


def test_a_folder_that_comes_or_goes_meanwhile_moves_no_other_name(folder):
    def change():
        write_image(folder / "class 00" / "new.jpg")
        shutil.rmtree(folder / "class 11")

    names, reasons = listed(folder, change)
    assert {f"{number}.jpg" for number in range(11)} <= set(names)
    raise_refusal(reasons)


def test_a_nested_folder_whose_name_cannot_be_read_gives_its_files_a_reason(tmp_path):
    for name in ("a/b/1.jpg", "a/b\u200b/2.jpg", "3.jpg"):
        write_image(tmp_path / name)
    found = list_below(os.fsencode(tmp_path), [b"a", b"3.jpg"], Wanted("nested_class_folders"))
    reasons = {file.path.rpartition("/")[2]: (file.label_name, file.ignored) for file in found}
    assert reasons == {
        "1.jpg": ("a/b", None),
        "2.jpg": (None, "class_name_unusable"),
        "3.jpg": (None, "no_class_folder"),
    }


@pytest.mark.parametrize("left", [(), (".keep",), ("README.md",)], ids=["nothing", "a hidden file", "a file"])
def test_an_executor_without_the_mount_is_an_error_and_no_loss_of_rows(folder, left):
    def change():
        shutil.rmtree(folder)
        folder.mkdir()
        for name in left:
            (folder / name).touch()

    _, reasons = listed(folder, change)
    with pytest.raises(
        SourceNotFoundError, match=r"some executors see (.* in .*, others folders|folders) in .*: mount"
    ):
        raise_refusal(reasons)
