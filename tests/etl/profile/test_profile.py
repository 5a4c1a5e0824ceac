"""Rules of the public function: what it compares, writes, keeps and refuses."""

from __future__ import annotations

import shutil
import sys

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from profile_tables import gathered, image_row, jpeg, picture, warnings_of, write_quarantine, write_table

from lakelens import ImageTable
from lakelens.errors import InvalidArgumentError, MissingDependencyError, NotAnImageTableError, VersionNotFoundError
from lakelens.etl.profile.profile import profile

pytestmark = pytest.mark.unit


def test_a_version_is_compared_with_another_one(tmp_path):
    location = write_table(tmp_path / "t", [image_row("cat", jpeg(picture(i)), i, split="train") for i in range(3)])
    write_table(location, [image_row("dog", jpeg(picture(9 + i)), i, split="train") for i in range(2)])
    DeltaTable(str(location)).delete("path = 'file:///images/cat/00001.jpg'")
    result = profile(location, out=tmp_path / "out", near_duplicates=False, compare=0)
    compared = result.profile.comparison
    assert compared.version == 0
    assert dict(compared.changes) == {"added": 2, "removed": 1, "content": 0, "label": 0, "split": 0}
    assert compared.classes.to_dict("index") == {"cat": {"before": 3, "after": 2}, "dog": {"before": 0, "after": 2}}
    texts = " ".join(finding.text for finding in result.findings)
    assert "Since version 0: 2 images added, 1 removed, 0 with other content" in texts
    assert "1 class new since version 0: dog." in texts
    assert "comparison" in {path.stem for path in result.plots}
    assert "<p>Version 0 of " in result.page.read_text(encoding="utf-8")
    back = gathered(location, 0, near_duplicates=False, compare=2)
    assert "1 class of version 2 without any image now: dog." in warnings_of(back)
    with pytest.raises(VersionNotFoundError):
        profile(location, out=tmp_path / "none", compare=7)
    assert not (tmp_path / "none").exists()


def test_an_image_table_without_spark_and_an_output_writes_its_profile_to_the_temporary_folder(
    two, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    before, temporary = sorted(tmp_path.iterdir()), tmp_path / "temporary"
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    temporary.mkdir()
    result = ImageTable(None, two).profile(0, near_duplicates=False, samples_per_class=1)
    assert (result.profile.version, result.profile.similar) == (0, None)
    assert {name: len(samples) for name, samples in result.profile.samples.items()} == {"cat": 1, "dog": 1}
    assert "TableProfile" not in repr(result)
    assert result.page.parent.parent == temporary
    assert result.page.parent.name.startswith("two-v0-profile-")
    assert sorted(path for path in tmp_path.iterdir() if path != temporary) == before


def test_an_emptied_table_still_has_a_profile(two, tmp_path):
    DeltaTable(str(two)).delete()
    result = profile(two, out=tmp_path / "out")
    assert (result.profile.rows, result.plots) == (0, ())
    assert "This version has no rows." in result.page.read_text(encoding="utf-8")


def test_a_profile_removes_plots_of_an_earlier_one_from_a_folder_even_if_its_name_has_a_colon(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    location = write_table(tmp_path / "t", [image_row("a", jpeg(picture(i)), i) for i in range(3)])
    write_quarantine(location, {"empty": 1})
    first = profile(location, out="run:3", near_duplicates=False)
    assert first.page == tmp_path / "run:3" / "profile.html"
    (tmp_path / "run:3" / "mine.png").write_bytes(b"")
    shutil.rmtree(f"{location}_quarantine")
    second = profile(location, out="run:3", near_duplicates=False)
    assert {path.name for path in first.plots} - {path.name for path in second.plots} == {"quarantine.png"}
    names = {path.name for path in (tmp_path / "run:3").iterdir()}
    assert names == {"mine.png", "profile.html", *(path.name for path in second.plots)}


def test_wrong_input_is_refused_before_an_image_is_read(two, tmp_path, monkeypatch):
    write_deltalake(str(tmp_path / "other"), pa.table({"a": [1]}))
    with pytest.raises(NotAnImageTableError, match=r"no column 'image' \(its columns: a\)"):
        profile(tmp_path / "other", out=tmp_path / "out")
    monkeypatch.setattr("lakelens.etl.profile.profile.read_numbers", None)
    for wrong in (-2, 13, True):
        with pytest.raises(InvalidArgumentError, match=rf"samples_per_class = {wrong}: give a whole number from 0 to"):
            profile(two, out=tmp_path / "out", samples_per_class=wrong)
    (tmp_path / "file").write_text("kept")
    for output in ("file", "file/below"):
        with pytest.raises(InvalidArgumentError, match=r"cannot be written: .*file is a file; give a folder"):
            profile(two, out=tmp_path / output)
    for module in ("matplotlib", "Jinja2"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module.lower(), None)
            with pytest.raises(MissingDependencyError, match=rf"a profile needs {module}.*search"):
                profile(two, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "file").read_text() == "kept"
