"""What an ingest says of input that it cannot take: exact reasons, and ways out."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable
from etl_pictures import write_image
from made_tables import make_table
from mounted_folders import account, mount
from stored_rows import stored_rows

from lakelens import DeltaFeed, ImageTable
from lakelens.errors import (
    ConstraintError,
    EmptySourceError,
    InvalidArgumentError,
    NotADeltaTableError,
    NotAnImageTableError,
    NothingStoredError,
    SparkFailedError,
    VersionFilesMissingError,
    VersionNotFoundError,
)
from lakelens.etl.ingest.checks import check_place
from lakelens.jobs.cli import main

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Two cats and a dog, and what is no image beside them."""
    root = tmp_path_factory.mktemp("messages") / "source"
    for place, seed in (("cat/1.jpg", 1), ("cat/kitten/2.jpg", 2), ("dog/1.jpg", 3)):
        write_image(root / place, seed=seed)
    for name in ("cat/notes.txt", "cat/READ.TXT", "cat/1.7z", "dog/README", "dog/log.2026", "dog/.hidden.jpg"):
        (root / name).write_text("x")
    return root


@pytest.fixture(scope="module")
def table(spark, source, tmp_path_factory):
    return ImageTable(spark, make_table(tmp_path_factory.mktemp("table") / "t", source, size=16))


@pytest.fixture
def copy(spark, table, tmp_path):
    """The same table at another place, which a test may change."""
    return ImageTable(spark, shutil.copytree(table.location, tmp_path / "t"))


def test_a_dry_run_counts_what_is_ignored_by_reason_and_suffix_through_links_and_dots(
    table, source, tmp_path, monkeypatch, capsys
):
    (tmp_path / "link").symlink_to(source, target_is_directory=True)
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    flags = ("--dry-run", "--list-ignored", "--verify", "content")
    assert main(["etl", "../link", os.path.relpath(table.location), *flags]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)
    assert (found["known"], found["new"], found["gone"]) == (3, 0, 0)
    assert found["ignored"] == {"hidden": 1, "not_an_image_name": 5}
    assert found["ignored_suffixes"] == {"hidden": {".jpg": 1}, "not_an_image_name": {"": 2, ".txt": 2, ".7z": 1}}
    shown = {" ".join(line.split()) for line in lines}
    assert {f"ignored {one}" for one in ("hidden .jpg 1", "not_an_image_name .txt 2")} <= shown
    assert "ignored not_an_image_name (no suffix) 2" in shown


def test_a_class_that_neither_source_nor_table_has_is_refused_also_where_nothing_is_new(table, source):
    with pytest.raises(InvalidArgumentError, match=r"'cta' is a class neither of .*; did you mean 'cat'\?"):
        table.ingest(source, classes=["dog", "cta"])
    with pytest.raises(InvalidArgumentError, match=r"'cta' is a class neither of .*; did you mean 'cat'\?"):
        table.ingest_stream(source, classes=["dog", "cta"])
    for wrong in ({"classes": [3]}, {"allow_loss": "no"}, {"near_duplicates": 1}, {"retry_quarantine": "no"}):
        with pytest.raises(InvalidArgumentError, match=next(iter(wrong))):
            table.ingest(source, **wrong)
    assert table.version == 0


def test_an_emptied_folder_takes_its_rows_away_only_if_that_is_said(copy, source, tmp_path):
    (emptied := tmp_path / "emptied").mkdir()
    DeltaTable(copy.location).update({"path": f"replace(path, '{source.as_uri()}', '{emptied.as_uri()}')"})
    with pytest.raises(
        EmptySourceError, match=r"on purpose.*delete_missing=True with allow_loss=True \(--delete-missing"
    ):
        copy.ingest(emptied)
    with pytest.raises(EmptySourceError, match="COCO instances file"):
        copy.ingest(emptied, "coco", delete_missing=True)
    result = copy.ingest(emptied, delete_missing=True, allow_loss=True)
    assert (result.gone, result.removed, copy.class_counts()) == (3, 3, {"cat": 0, "dog": 0})


def test_files_and_boxes_that_classes_left_out_are_taken_once_wanted_and_renamed_with_their_class(
    spark, source, tmp_path
):
    manifest = source.parent / "boxes.json"
    sides = {"xmin": 0, "ymin": 0, "xmax": 9, "ymax": 9}
    boxes = [{"label": name, **sides} for name in ("cat", "dog")]
    said = (("cat/1.jpg", "cat", boxes), ("dog/1.jpg", "dog", []))
    rows = [{"path": f"source/{path}", "label": label, "boxes": given} for path, label, given in said]
    manifest.write_text(json.dumps(rows))
    table = ImageTable(spark, tmp_path / "t")
    first = table.ingest(manifest, "manifest", classes=["cat"], size=16)
    assert (first.stored, first.reasons) == (1, {"class_unknown": 1})
    assert table.preview(manifest, "manifest", classes=["cat"]).known == 2
    result = table.ingest(manifest, "manifest", size=16)
    assert (result.stored, result.reasons, table.quarantine().count) == (2, {}, 0)
    assert table.rename_class("dog", "hound").rows == 2
    rows = {row.label_name: row.annotations for row in stored_rows(table.location)}
    assert {name: [box.label_name for box in boxes] for name, boxes in rows.items()} == {
        "cat": ["cat", "hound"],
        "hound": [],
    }
    again = table.ingest(manifest, "manifest")
    assert (again.skipped, again.committed) == (2, False)


def test_the_first_ingest_decides_about_the_numbers_of_class_folders_and_the_table_keeps_it(spark, table, tmp_path):
    folders = {"s": ("001.cat", "002.dog"), "grown": ("001.cat", "002.dog", "misc"), "noted": ("001.cat",)}
    for source, names in folders.items():
        for name in names:
            write_image(tmp_path / source / name / "1.jpg", seed=len(name))
    # A folder without images counts for the rule too, on a disk and in a store.
    (tmp_path / "noted" / "readme").mkdir()
    (tmp_path / "noted" / "readme" / "licence.txt").write_text("CC0")
    for folder in ("big cat", "big  cat"):
        write_image(tmp_path / "nested" / "pets" / folder / "1.jpg")
    numbered, new = (ImageTable(spark, tmp_path / name) for name in ("numbered", "new"))
    assert numbered.ingest(tmp_path / "s", size=16).new_classes == ("cat", "dog")
    with mount(spark, "abfs", f"images@{account()}.dfs.core.windows.net", tmp_path) as uri:
        for place in (tmp_path, uri):
            assert set(table.preview(f"{place}/s").new_classes) == {"001.cat", "002.dog"}
            assert new.preview(f"{place}/noted").new_classes == ("001.cat",)
            assert numbered.preview(f"{place}/grown").new_classes == ("misc",)
        with pytest.raises(InvalidArgumentError, match="'pets/big  cat' and 'pets/big cat' both name the class"):
            new.preview(f"{uri}/nested", layout="nested_class_folders")
    with pytest.raises(InvalidArgumentError, match="keep_folder_names = True, but the rows of"):
        numbered.preview(tmp_path / "s", keep_folder_names=True)


def test_a_table_is_not_ingested_into_by_another_folder_layout(table, source):
    with pytest.raises(InvalidArgumentError, match=r"1 files .*'cat'.*'class_folders'.*'cat/kitten'.*a new table"):
        table.ingest(source, layout="nested_class_folders")


def test_a_constraint_of_others_is_named_with_the_values_that_break_it(copy, tmp_path):
    DeltaTable(copy.location).alter.add_constraint({"pets": "label_name <> 'cow'"})
    write_image(tmp_path / "more" / "cow" / "1.jpg", seed=9)
    with pytest.raises(ConstraintError, match=r"CHECK constraint pets .*label_name : cow.*DROP CONSTRAINT"):
        copy.ingest(tmp_path / "more")


def test_an_append_only_table_refuses_every_edit_and_keeps_its_quarantine(copy, source, tmp_path):
    DeltaTable(copy.location).alter.set_table_properties({"delta.appendOnly": "true"})
    changed = tmp_path / "changed.csv"
    changed.write_text(f"path,label\n{source}/cat/1.jpg,dog\n{source}/cat/notes.txt,dog\n")
    for edit in (
        lambda: copy.ingest(changed, "manifest"),
        lambda: copy.delete("width > 0"),
        lambda: copy.rename_class("cat", "lion"),
    ):
        with pytest.raises(ConstraintError, match=r"is append-only \(delta.appendOnly = true\).*UNSET TBLPROPERTIES"):
            edit()
    assert (copy.version, copy.quarantine().files, list(copy.labels())) == (1, (), ["cat", "dog"])


def test_a_failure_of_spark_is_an_error_of_ours_with_its_innermost_cause(spark, copy):
    content = "CAST(raise_error('the scanner is off') AS BINARY)"
    broken = spark.range(2).selectExpr("concat('f', id, '.jpg') path", f"{content} content", "'cat' label")
    with pytest.raises(SparkFailedError, match=r"Spark failed: .*the scanner is off"):
        copy.ingest(broken)
    (first, *_) = (Path(copy.location) / path for path in copy.snapshot().files.paths)
    # Checksums as Hadoop keeps them, which are not those of the file
    first.with_name(f".{first.name}.crc").write_bytes(b"crc\0" + (512).to_bytes(4, "big") + bytes(first.stat().st_size))
    with pytest.raises(SparkFailedError, match=r"failed: .*(Checksum error|not a Parquet|FAILED_READ_FILE)") as caught:
        copy.delete("width > 0")
    assert caught.value.__cause__ is not None
    assert copy.version == 0


def test_a_table_below_a_file_is_refused(source):
    (source.parent / "rows.csv").write_text("path,label\n")
    for file in ("source/cat/1.jpg", "rows.csv"):
        with pytest.raises(NotADeltaTableError, match=rf"{file} is a file; give a path below folders"):
            check_place(str(source.parent / file / "deep" / "t"))


def test_a_version_whose_log_has_lost_a_commit_is_neither_read_nor_written_nor_made_anew(copy, source, tmp_path):
    copy.delete("path LIKE '%kitten%'")
    # Delta remembers the log of a place that it has read. The checksum of version 1 stays, which delta-rs reads.
    moved = Path(shutil.copytree(copy.location, tmp_path / "moved"))
    (moved / "_delta_log" / f"{0:020d}.json").unlink()
    lost = ImageTable(copy.spark, moved)
    for call in (lost.snapshot, lambda: lost.ingest(source), lambda: DeltaFeed(moved), lost.vacuum):
        with pytest.raises(VersionNotFoundError, match="version 1 does not exist or can no longer be rebuilt"):
            call()


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


def test_a_column_that_somebody_has_renamed_is_named_and_the_table_works_once_it_is_back(spark, copy, tmp_path):
    name = f"delta.`{copy.location}`"
    mapping = "'delta.columnMapping.mode' = 'name', 'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5'"
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({mapping})")
    spark.sql(f"ALTER TABLE {name} RENAME COLUMN label_name TO kind")
    write_image(tmp_path / "more" / "cow" / "1.jpg", seed=9)
    for call in (lambda: copy.ingest(tmp_path / "more"), lambda: copy.delete("true")):
        with pytest.raises(NotAnImageTableError, match=r"no column 'label_name' any more.*RENAME COLUMN"):
            call()
    spark.sql(f"ALTER TABLE {name} RENAME COLUMN kind TO label_name")
    more = copy.ingest(tmp_path / "more")
    assert (more.stored, more.small_splits) == (1, {})  # which are those of a first ingest
    assert copy.class_counts() == {"cat": 2, "dog": 1, "cow": 1}
    assert (copy.diff(0).added, copy.history()[0].rows) == ({"cow": 1}, 4)


def test_a_version_whose_files_are_gone_is_not_read(copy):
    DeltaTable(copy.location).delete("label_name = 'cat'")
    copy.vacuum(0, allow_short_retention=True)
    with pytest.raises(VersionFilesMissingError, match=r"removed by VACUUM.*Versions with all their files: 1"):
        copy.read(0)
    assert copy.read(1).count() == 1


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
    shares = ("train=0.01", "val=0.01", "test=0.98")
    flags = [flag for share in shares for flag in ("--split", share)]
    assert main(["etl", str(tmp_path / "s"), str(tmp_path / "t"), "--size", "16", *flags]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out.splitlines()[-1])["small_splits"]
    assert set(found) == {"val"}
    assert all(count < 5 for count in found["val"].values())
    assert f"few images in val: {found['val']['cat']} of 'cat', {found['val']['dog']} of 'dog'; " in captured.err


def test_a_voc_folder_without_an_xml_file_is_an_error_and_leaves_a_table_as_it_is(table, tmp_path):
    for number in range(3):
        write_image(tmp_path / "JPEGImages" / f"{number}.jpg", seed=number)
    with pytest.raises(NothingStoredError, match=r"none of 3 images can be stored, so .* stays as it is"):
        table.ingest(tmp_path, layout="voc")
    assert (table.version, table.quarantine().count) == (0, 0)
