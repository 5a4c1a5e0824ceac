"""What an ingest says of input that it cannot take: exact reasons, and ways out."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
from deltalake import DeltaTable
from etl_pictures import write_image
from mounted_folders import account, mount
from spark_jobs import jobs_of
from stored_rows import stored_rows

from lakelens import ImageTable
from lakelens.errors import (
    ConstraintError,
    EmptySourceError,
    IngestLossError,
    InvalidArgumentError,
    NotADeltaTableError,
    NotAnImageTableError,
    NothingStoredError,
    SparkFailedError,
    VersionFilesMissingError,
)
from lakelens.jobs.cli import main

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Two cats and a dog, and what is no image beside them."""
    root = tmp_path_factory.mktemp("messages") / "source"
    for place, seed in (("cat/1.jpg", 1), ("cat/2.jpg", 2), ("dog/1.jpg", 3)):
        write_image(root / place, seed=seed)
    for name in ("cat/notes.txt", "cat/READ.TXT", "dog/README", "dog/.hidden.jpg"):
        (root / name).write_text("x")
    return root


@pytest.fixture(scope="module")
def table(spark, source, tmp_path_factory):
    table = ImageTable(spark, tmp_path_factory.mktemp("table") / "t")
    table.ingest(source, size=16)
    return table


def test_what_is_ignored_is_counted_by_reason_and_suffix(table, source, capsys):
    found = table.preview(source, verify="content")
    assert found.ignored == {"hidden": 1, "not_an_image_name": 3}
    assert found.ignored_suffixes == {"hidden": {".jpg": 1}, "not_an_image_name": {".txt": 2, "": 1}}
    assert main(["etl", str(source), table.location, "--dry-run", "--list-ignored"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("ignored")]
    for line in (
        ["ignored", "hidden", ".jpg", "1"],
        ["ignored", "not_an_image_name", ".txt", "2"],
        ["ignored", "not_an_image_name", "(no", "suffix)", "1"],
    ):
        assert line in lines


def test_a_class_that_neither_source_nor_table_has_is_refused_also_where_nothing_is_new(table, source):
    with pytest.raises(InvalidArgumentError, match=r"'cta' is a class neither of .*; did you mean 'cat'\?"):
        table.ingest(source, classes=["dog", "cta"])
    with pytest.raises(InvalidArgumentError, match=r"'cta' is a class neither of .*; did you mean 'cat'\?"):
        table.ingest_stream(source, classes=["dog", "cta"])
    for wrong in ({"classes": [3]}, {"allow_loss": "no"}, {"near_duplicates": 1}, {"retry_quarantine": "no"}):
        with pytest.raises(InvalidArgumentError, match=next(iter(wrong))):
            table.ingest(source, **wrong)
    assert table.version == 0


def test_an_emptied_folder_takes_its_rows_away_only_if_that_is_said_twice(spark, source, tmp_path):
    mine = shutil.copytree(source, tmp_path / "mine")
    table = ImageTable(spark, tmp_path / "t")
    table.ingest(mine, size=16)
    shutil.rmtree(mine)
    mine.mkdir()
    with pytest.raises(
        EmptySourceError, match=r"on purpose.*delete_missing=True with allow_loss=True \(--delete-missing"
    ):
        table.ingest(mine)
    with pytest.raises(IngestLossError, match="3 of 3 stored rows"):
        table.ingest(mine, delete_missing=True)
    with pytest.raises(EmptySourceError, match="COCO instances file"):
        table.ingest(mine, "coco", delete_missing=True)
    result = table.ingest(mine, delete_missing=True, allow_loss=True)
    assert (result.gone, result.removed, table.class_counts()) == (3, 3, {"cat": 0, "dog": 0})


def test_files_and_boxes_that_classes_left_out_are_taken_once_their_class_is_wanted(spark, source, tmp_path):
    manifest = source.parent / "boxes.json"
    sides = {"xmin": 0, "ymin": 0, "xmax": 9, "ymax": 9}
    boxes = [{"label": name, **sides} for name in ("cat", "dog")]
    said = (("cat/1.jpg", "cat", boxes), ("dog/1.jpg", "dog", []))
    rows = [{"path": f"source/{path}", "label": label, "boxes": given} for path, label, given in said]
    manifest.write_text(json.dumps(rows))
    table = ImageTable(spark, tmp_path / "t")
    calls = ((["cat"], 1, {"class_unknown": 1}), (["cat"], 0, {}), (None, 2, {}), (None, 0, {}))
    for classes, stored, reasons in calls:
        result = table.ingest(manifest, "manifest", classes=classes, size=16)
        assert (result.stored, result.reasons) == (stored, reasons)
    assert table.quarantine().count == 0
    (row,) = [row for row in stored_rows(table.location) if row.path.endswith("cat/1.jpg")]
    assert [box.label_name for box in row.annotations] == ["cat", "dog"]


@pytest.mark.parametrize("scheme", ["", "abfs"])
def test_the_first_ingest_decides_about_the_numbers_of_class_folders_and_the_table_keeps_it(spark, tmp_path, scheme):
    def classes(table):
        return {row.path.rpartition("/")[2]: row.label_name for row in stored_rows(table.location)}

    for name in ("s/001.cat/1.jpg", "s/002.dog/2.jpg", "plain/cat/3.jpg", "noted/001.cat/1.jpg"):
        write_image(tmp_path / name, seed=len(name))
    (tmp_path / "noted" / "readme").mkdir()
    (tmp_path / "noted" / "readme" / "licence.txt").write_text("CC0")
    with (
        mount(spark, scheme, f"images@{account()}.dfs.core.windows.net", tmp_path)
        if scheme
        else nullcontext(str(tmp_path)) as place
    ):
        numbered, plain = (ImageTable(spark, tmp_path / name) for name in ("numbered", "plain table"))
        first = numbered.ingest(f"{place}/s", size=16)
        assert first.new_classes == ("cat", "dog")
        assert {split: set(few) for split, few in first.small_splits.items()} == {
            "validation": {"cat", "dog"},
            "test": {"cat", "dog"},
        }
        plain.ingest(f"{place}/plain", size=16)
        write_image(tmp_path / "s" / "misc" / "4.jpg", seed=4)
        more = numbered.ingest(f"{place}/s")
        assert (more.stored, more.small_splits) == (1, {})
        assert classes(numbered) == {"1.jpg": "cat", "2.jpg": "dog", "4.jpg": "misc"}
        (tmp_path / "s" / "misc" / "4.jpg").unlink()
        (tmp_path / "s" / "misc").rmdir()
        plain.ingest(f"{place}/s")
        assert classes(plain) == {"3.jpg": "cat", "1.jpg": "001.cat", "2.jpg": "002.dog"}
        kept = ImageTable(spark, tmp_path / "kept")
        kept.ingest(f"{place}/s", size=16, keep_folder_names=True)
        assert set(classes(kept).values()) == {"001.cat", "002.dog"}
        # A folder without images counts for the rule too, on a disk and in a store.
        noted = ImageTable(spark, tmp_path / "noted table")
        noted.ingest(f"{place}/noted", size=16)
        assert set(classes(noted).values()) == {"001.cat"}
        with pytest.raises(InvalidArgumentError, match="keep_folder_names = True, but the rows of"):
            numbered.ingest(f"{place}/s", keep_folder_names=True)
        for folder in ("big cat", "big  cat"):
            write_image(tmp_path / "nested" / "pets" / folder / "1.jpg")
        with pytest.raises(InvalidArgumentError, match="'pets/big  cat' and 'pets/big cat' both name the class"):
            ImageTable(spark, tmp_path / "none").ingest(f"{place}/nested", layout="nested_class_folders", size=16)
    assert not (tmp_path / "none").exists()


def test_a_table_is_not_ingested_into_by_another_folder_layout(spark, tmp_path):
    write_image(tmp_path / "s" / "001.pets" / "cat" / "1.jpg")
    table = ImageTable(spark, tmp_path / "t")
    table.ingest(tmp_path / "s", size=16)
    assert {row.label_name for row in stored_rows(table.location)} == {"pets"}
    with pytest.raises(InvalidArgumentError, match=r"1 files .*'pets'.*'class_folders'.*'pets/cat'.*a new table"):
        table.ingest(tmp_path / "s", layout="nested_class_folders")


def test_a_source_and_a_table_are_the_same_through_links_and_dots(spark, tmp_path, monkeypatch):
    write_image(tmp_path / "photos" / "cat" / "1.jpg")
    (tmp_path / "link").symlink_to("photos", target_is_directory=True)
    (tmp_path / "project").mkdir()
    coco = {"images": [{"id": 0, "file_name": "1.jpg"}], "annotations": [], "categories": []}
    (tmp_path / "photos" / "cat" / "_annotations.coco.json").write_text(json.dumps(coco))
    assert ImageTable(spark, tmp_path / "t").ingest(tmp_path / "photos", size=16).stored == 1
    monkeypatch.chdir(tmp_path / "project")
    assert ImageTable(spark, "../t").ingest("../link").skipped == 1
    result = ImageTable(spark, "../u").ingest("../photos", "coco", size=16)
    assert (result.stored, result.quarantined) == (1, 0)


def test_a_constraint_of_others_is_named_with_the_values_that_break_it(spark, source, tmp_path):
    table = ImageTable(spark, tmp_path / "t")
    table.ingest(source, size=16)
    DeltaTable(table.location).alter.add_constraint({"pets": "label_name <> 'cow'"})
    write_image(tmp_path / "more" / "cow" / "1.jpg", seed=9)
    with pytest.raises(ConstraintError, match=r"CHECK constraint pets .*label_name : cow.*DROP CONSTRAINT"):
        table.ingest(tmp_path / "more")


def test_an_append_only_table_refuses_every_edit_and_keeps_its_quarantine(spark, source, tmp_path):
    source, table = shutil.copytree(source, tmp_path / "source"), ImageTable(spark, tmp_path / "t")
    table.ingest(source, size=16)
    DeltaTable(table.location).alter.set_table_properties({"delta.appendOnly": "true"})
    write_image(source / "cat" / "1.jpg", seed=77)
    for edit in (
        lambda: table.ingest(source),
        lambda: table.delete("width > 0"),
        lambda: table.rename_class("cat", "lion"),
    ):
        with pytest.raises(ConstraintError, match=r"is append-only \(delta.appendOnly = true\).*UNSET TBLPROPERTIES"):
            edit()
    assert (table.version, table.quarantine().files, list(table.labels())) == (1, (), ["cat", "dog"])


def test_a_failure_of_spark_is_an_error_of_ours_with_its_innermost_cause(spark, source, tmp_path):
    table = ImageTable(spark, tmp_path / "t")
    table.ingest(source, size=16)
    content = "CAST(raise_error('the scanner is off') AS BINARY)"
    broken = spark.range(2).selectExpr("concat('f', id, '.jpg') path", f"{content} content", "'cat' label")
    with pytest.raises(SparkFailedError, match=r"Spark failed: .*the scanner is off"):
        table.ingest(broken)
    (first, *_) = (Path(table.location) / path for path in table.snapshot().files.paths)
    first.write_bytes(first.read_bytes()[:200])
    with pytest.raises(SparkFailedError, match=r"failed: .*(Checksum error|not a Parquet|FAILED_READ_FILE)") as caught:
        table.delete("width > 0")
    assert caught.value.__cause__ is not None
    assert table.version == 0


@pytest.mark.parametrize("file", ["source/cat/1.jpg", "rows.csv"])
def test_a_table_below_a_file_is_refused_before_an_image_is_read(spark, source, tmp_path, file):
    (source.parent / "rows.csv").write_text("path,label\n")
    with (
        jobs_of(spark) as jobs,
        pytest.raises(NotADeltaTableError, match=rf"{file} is a file; give a path below folders"),
    ):
        ImageTable(spark, source.parent / file / "deep" / "t").ingest(source)
    assert len(jobs) == 0, str(jobs)


def test_a_web_address_is_refused_as_a_source(spark, source, tmp_path):
    table = ImageTable(spark, tmp_path / "t")
    for call in (
        lambda: table.ingest("https://example.com/images"),
        lambda: table.ingest("ftp://example.com/rows.csv", "manifest"),
        lambda: table.ingest(source, "coco", annotations="http://example.com/instances.json"),
    ):
        with pytest.raises(InvalidArgumentError, match="is a web address, whose files cannot be listed"):
            call()


def test_one_stray_uri_of_a_manifest_is_one_quarantined_row(spark, source, tmp_path):
    manifest = source.parent / "rows.csv"
    stray, long = "s3a://elsewhere/1.jpg", "x" * 300
    manifest.write_text(f"path,label\nsource/cat/1.jpg,cat\n{stray},cat\nsource/{long}.jpg,cat\nsource/no.jpg,dog\n")
    table = ImageTable(spark, tmp_path / "t")
    assert table.ingest(manifest, "manifest", size=16).stored == 1
    found = {file.path.rpartition("/")[2]: (file.reason, file.error) for file in table.quarantine().files}
    assert found["1.jpg"][0] == found[f"{long}.jpg"][0] == "path_unusable"
    assert "in another file system than the other images, which are in file:" in found["1.jpg"][1]
    assert found["no.jpg"][0] == "image_missing"
    manifest.write_text(f"path,label\n{stray},cat\n")
    with pytest.raises(InvalidArgumentError, match=r"s3a://elsewhere/1.jpg; give the folder .*images="):
        ImageTable(spark, tmp_path / "u").ingest(manifest, "manifest")


def test_a_column_that_somebody_has_renamed_is_named_and_the_table_works_once_it_is_back(spark, source, tmp_path):
    table = ImageTable(spark, tmp_path / "t")
    table.ingest(source, size=16)
    name = f"delta.`{table.location}`"
    mapping = "'delta.columnMapping.mode' = 'name', 'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5'"
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({mapping})")
    spark.sql(f"ALTER TABLE {name} RENAME COLUMN label_name TO kind")
    for call in (lambda: table.ingest(source), lambda: table.delete("true")):
        with pytest.raises(NotAnImageTableError, match=r"no column 'label_name' any more.*RENAME COLUMN"):
            call()
    spark.sql(f"ALTER TABLE {name} RENAME COLUMN kind TO label_name")
    write_image(tmp_path / "more" / "cow" / "1.jpg", seed=9)
    assert table.ingest(tmp_path / "more").stored == 1
    assert table.class_counts() == {"cat": 2, "dog": 1, "cow": 1}
    assert (table.diff(0).added, table.history()[0].rows) == ({"cow": 1}, 4)


def test_a_version_whose_files_are_gone_is_not_read(spark, source, tmp_path):
    table = ImageTable(spark, tmp_path / "t")
    table.ingest(source, size=16)
    DeltaTable(table.location).delete("label_name = 'cat'")
    table.vacuum(0, allow_short_retention=True)
    with pytest.raises(VersionFilesMissingError, match=r"removed by VACUUM.*Versions with all their files: 1"):
        table.read(0)
    assert table.read(1).count() == 1


def test_a_schema_that_the_catalog_does_not_have_is_named(spark, source):
    for name in ("no_such.t", "no_catalog.no_such.t"):
        with pytest.raises(NotADeltaTableError, match=r"the catalog has no schema .*; create it"):
            ImageTable(spark, name).ingest(source)
        for call in ("history", "read", "optimize"):
            with pytest.raises(NotADeltaTableError, match=name):
                getattr(ImageTable(spark, name), call)()


def test_a_split_with_few_images_of_a_class_is_told_after_the_first_ingest(spark, tmp_path, capsys):
    for name, first, count in (("cat", 0, 12), ("dog", 100, 8)):
        for number in range(count):
            write_image(tmp_path / "s" / name / f"{number}.jpg", seed=first + number)
    command = ["etl", str(tmp_path / "s"), str(tmp_path / "t"), "--size", "16"]
    assert main([*command, "--split", "train=0.01", "--split", "test=0.99"]) == 0
    assert "few images" not in capsys.readouterr().err
    assert (
        main([*command[:2], str(tmp_path / "few"), *command[3:], "--split", "train=0.99", "--split", "val=0.01"]) == 0
    )
    captured = capsys.readouterr()
    found = json.loads(captured.out.splitlines()[-1])["small_splits"]
    assert set(found) == {"val"}
    assert all(count < 5 for count in found["val"].values())
    assert f"few images in val: {found['val']['cat']} of 'cat', {found['val']['dog']} of 'dog'; " in captured.err


@pytest.mark.parametrize("files", [1, 3])
def test_a_voc_folder_without_an_xml_file_is_an_error_and_leaves_a_table_as_it_is(spark, table, tmp_path, files):
    for number in range(files):
        write_image(tmp_path / "JPEGImages" / f"{number}.jpg", seed=number)
    before, bad = table.history()[-1].version, table.quarantine().count
    with pytest.raises(NothingStoredError, match=rf"none of {files} images can be stored, so .* stays as it is"):
        table.ingest(tmp_path, layout="voc")
    assert (table.history()[-1].version, table.quarantine().count) == (before, bad)
