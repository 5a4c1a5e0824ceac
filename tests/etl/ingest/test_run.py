"""Rules of the ingest."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field
from etl_pictures import decode, encoded, fit, picture, write_image
from made_tables import make_table
from PIL import Image
from stored_rows import stored_rows
from version_tables import images, write

from lakelens import ImageTable
from lakelens.errors import (
    EmptySourceError,
    InvalidArgumentError,
    NotADeltaTableError,
    NotAnImageTableError,
    QuarantineConflictError,
    SourceNotFoundError,
    TableConflictError,
    VersionNotFoundError,
)
from lakelens.etl import quarantine as quarantine_table
from lakelens.etl.changes import planner
from lakelens.etl.ingest.row_task import BatchTask
from lakelens.etl.model.splits import split_of
from lakelens.etl.quarantine import Quarantine, quarantine_location
from lakelens.retries import Retries
from lakelens.spark.port import settings_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SIZE = 32
SPLITS = {"train": 0.5, "validation": 0.5}
# Of the session of a caller.
SETTINGS = {
    "spark.sql.session.timeZone": "Asia/Tokyo",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.parquet.compression.codec": "gzip",
}


def log_entries(table: ImageTable, version: int) -> list[dict]:
    text = (Path(table.location) / "_delta_log" / f"{version:020d}.json").read_text()
    return [json.loads(line) for line in text.splitlines()]


def rows_by_name(table: ImageTable, version: int) -> dict[str, SimpleNamespace]:
    """The rows of a version by folder and name of their files, as the paths write them."""
    rows = {"/".join(row.path.split("/")[-2:]): row for row in stored_rows(table.location, version)}
    assert len(rows) == sum(table.class_counts(version).values())
    return rows


def count_reads(patched: pytest.MonkeyPatch) -> list[int]:
    """Tells how many files were given to be read again because of their size or time."""
    counts: list[int] = []
    hashes = planner.content_hashes

    def counted(listing, files, count):
        counts.append(count)
        return hashes(listing, files, count)

    patched.setattr(planner, "content_hashes", counted)
    return counts


@pytest.fixture(scope="module")
def story(spark, tmp_path_factory):
    """A table through its ingests, each with its result; no test makes another version of it.

    It grows by a class and changes, by a session with settings of its own; then come bad files alone. In the end two
    bad ones are mended, a change is taken back, and another file turns bad.
    """
    root = tmp_path_factory.mktemp("story")
    source = root / "images with space é%"
    for number in range(12):
        write_image(source / "001.ak47" / f"001_{number:04d}.jpg", seed=number)
    for number in range(6):
        write_image(source / "cat" / f"{number} é%.png", seed=100 + number)
    shutil.copy(source / "cat" / "0 é%.png", source / "cat" / "copy of 0.png")
    (source / "cat" / "text.jpg").write_text("this is not an image")
    (source / "cat" / "half.jpg").write_bytes(encoded(picture(7))[:300])
    (source / "cat" / "zero.jpg").write_bytes(b"")
    (source / "cat" / "RENAME2").write_text("notes")
    (source / "cat" / "loop").symlink_to(source / "cat", target_is_directory=True)
    (source / "cat" / "png.jpg").write_bytes(encoded(picture(55), "PNG"))
    table = ImageTable(spark, root / "table with space é%")
    told = {"source": source, "table": table}
    told["first"] = table.ingest(source, size=SIZE, splits=SPLITS, keep_folder_names=False)
    told["modified ns"] = (source / "001.ak47" / "001_0003.jpg").stat().st_mtime_ns
    touched, changing = (source / "001.ak47" / name for name in ("001_0003.jpg", "001_0004.jpg"))
    before = changing.read_bytes()
    with pytest.MonkeyPatch.context() as patched:
        told["reads"] = count_reads(patched)
        os.utime(touched, (1_600_000_000, 1_600_000_000))
        (source / "dog").mkdir()
        for number in range(4):
            write_image(source / "dog" / f"{number}.jpg", seed=200 + number)
        write_image(source / "001.ak47" / "001_0000.jpg", seed=999)  # changed
        write_image(changing, seed=4711)
        os.utime(changing, (1_500_000_000, 1_500_000_000))
        # Each file is a row, or bad by its bytes: reading one again would fail.
        with pytest.MonkeyPatch.context() as without_second_reading:
            without_second_reading.setattr(BatchTask, "quarantined_rows", None)
            with settings_of(spark, SETTINGS):
                told["grown"] = table.ingest(source, size=SIZE, splits=SPLITS)
                told["settings"] = {name: spark.conf.get(name) for name in SETTINGS}
            broken = source / "dog" / "broken.jpg"
            broken.write_text("broken")
            (source / "cow").mkdir()
            (source / "cow" / "no cow.jpg").write_text("no image")
            os.utime(touched, (1_650_000_000, 1_650_000_000))
            told["bad"] = table.ingest(source, near_duplicates=True)
        write_image(broken, seed=1234)
        write_image(source / "cat" / "half.jpg", seed=7)
        (source / "dog" / "3.jpg").write_text("no image any more")
        changing.write_bytes(before)
        os.utime(changing, (1_600_000_000, 1_600_000_000))
        told["mended"] = table.ingest(source)
    return told


STEPS = ("first", "grown", "bad", "mended")


def test_every_source_file_is_accounted_for(story):
    for result in (story[step] for step in STEPS):
        assert result.rows_in == result.stored + result.quarantined + result.skipped
    first = story["first"]
    assert (first.rows_in, first.stored, first.quarantined, first.skipped) == (23, 20, 3, 0)
    assert first.reasons == {"empty": 1, "not_an_image": 1, "truncated": 1}
    assert first.ignored == {"not_an_image_name": 1, "link_loop": 1}


def test_new_and_changed_files_only_are_read_again_and_touched_ones_once(story):
    grown = story["grown"]
    assert (grown.rows_in, grown.stored, grown.quarantined, grown.skipped) == (27, 6, 0, 21)
    assert grown.changed == 2
    rows = rows_by_name(story["table"], grown.version)
    assert {name for name, row in rows.items() if row.batch_id == grown.batch_id} == {
        *("001.ak47/001_0000.jpg", "001.ak47/001_0004.jpg"),
        *(f"dog/{number}.jpg" for number in range(4)),
    }
    # A touched and two changed files; the touched one again; one that was changed back and one that turned bad.
    assert story["reads"] == [3, 1, 2]


def test_one_ingest_is_one_commit_is_one_version(story):
    table = story["table"]
    assert [story[step].version for step in STEPS] == [0, 1, 1, 2]
    assert [info.version for info in table.history()] == [2, 1, 0]
    # New rows and the replaced row are in the one commit; the new class's number is in the ledger.
    kinds = [next(iter(entry)) for entry in log_entries(table, 1)]
    assert {"commitInfo", "add", "remove", "txn"} <= set(kinds)
    ingests = [story[step].batch_id for step in ("mended", "grown", "first")]
    assert [info.batch_id for info in table.history()] == ingests
    commits = [entry["commitInfo"] for n in range(3) for entry in log_entries(table, n) if "commitInfo" in entry]
    assert len({json.loads(commit["userMetadata"])["id"] for commit in commits}) == 3  # a batch_id may be given twice


def test_version_0_reads_version_0s_rows_after_later_versions_and_after_a_delete(story, spark, tmp_path):
    table = story["table"]
    before = {row.path: row.content_hash for row in stored_rows(table.location, 0)}
    assert len(before) == 20
    assert table.class_counts(0) == {"ak47": 12, "cat": 8}
    assert table.class_counts(story["grown"].version) == {"ak47": 12, "cat": 8, "dog": 4}
    shutil.copytree(table.location, tmp_path / "copy")
    DeltaTable(tmp_path / "copy").delete("label_name = 'cat'")
    copy = ImageTable(spark, tmp_path / "copy")
    assert (copy.version, copy.class_counts()["cat"]) == (table.version + 1, 0)
    rows = copy.read(0).select("path", "content_hash").collect()
    assert len(rows) == 20
    assert {row.path: row.content_hash for row in rows} == before


def test_bad_files_are_in_quarantine_until_they_are_mended(story):
    rows = {Path(row.path).name: row for row in story["table"].read_quarantine().collect()}
    assert {name: row.reason for name, row in rows.items()} == {
        "text.jpg": "not_an_image",
        "zero.jpg": "empty",
        "no%20cow.jpg": "not_an_image",
        "3.jpg": "not_an_image",
    }
    assert rows["text.jpg"].error
    assert rows["text.jpg"].source_length == len("this is not an image")
    mended = {"cat/half.jpg", "dog/broken.jpg"}
    for version, there in ((story["grown"].version, {"dog/3.jpg"}), (story["mended"].version, mended)):
        assert {"dog/3.jpg", *mended} & rows_by_name(story["table"], version).keys() == there


def test_a_row_holds_its_source(story):
    row = rows_by_name(story["table"], 0)["001.ak47/001_0003.jpg"]
    data = (story["source"] / "001.ak47" / "001_0003.jpg").read_bytes()
    assert row.path.endswith("/images%20with%20space%20%C3%A9%25/001.ak47/001_0003.jpg")
    assert row.content_hash == hashlib.sha256(data).hexdigest()
    assert (row.source_length, row.format, row.height, row.width) == (len(data), "jpeg", SIZE, SIZE)
    modified = timedelta(milliseconds=story["modified ns"] // 1_000_000)
    assert row.source_modified == datetime(1970, 1, 1) + modified  # in UTC, as INT96 is
    expected = np.asarray(fit(decode(data), SIZE)).astype(int)
    shown = np.asarray(Image.open(io.BytesIO(row.image))).astype(int)
    assert np.abs(expected - shown).mean() < 8  # chroma at half the size


def test_splits_follow_content_so_that_duplicates_never_straddle_and_old_rows_never_move(story):
    location = story["table"].location
    versions = (0, story["grown"].version)
    old, new = ({row.path: row for row in stored_rows(location, version)} for version in versions)
    for path, row in new.items():
        assert row.split == split_of(row.content_hash, SPLITS, 0)
        if path in old and old[path].content_hash == row.content_hash:
            assert row.split == old[path].split
    twins = [row.split for path, row in new.items() if path.endswith(("/0%20%C3%A9%25.png", "/copy%20of%200.png"))]
    assert len(twins) == 2
    assert len(set(twins)) == 1


def test_the_layout_is_made_for_the_feed_whatever_the_settings_of_the_callers_session_which_stay(story):
    assert story["settings"] == SETTINGS
    table = story["table"]
    (add, *_) = [entry["add"] for entry in log_entries(table, 0) if "add" in entry]
    statistics = json.loads(add["stats"])
    assert statistics["numRecords"] > 0
    assert "image" not in statistics["minValues"]
    assert statistics["minValues"]["path"].startswith("file:///")
    assert set(add["partitionValues"]) == {"split"}
    for path in Path(table.location).glob("split=*/*.parquet"):
        file = pq.ParquetFile(path)
        column = file.metadata.row_group(0).column(file.schema_arrow.get_field_index("image"))
        assert column.compression == "UNCOMPRESSED"
        assert not any("DICTIONARY" in encoding for encoding in column.encodings)


def test_the_recipe_of_a_table_is_fixed(story):
    version = story["table"].version
    with pytest.raises(InvalidArgumentError) as caught:
        story["table"].ingest(story["source"], size=64)
    assert all(word in str(caught.value) for word in ("size = 64", "size = 32", "another table"))
    assert story["table"].version == version


def test_a_batch_of_bad_files_only_makes_no_version_and_no_class(story):
    bad, mended = story["bad"], story["mended"]
    assert (bad.rows_in, bad.stored, bad.quarantined, bad.skipped, bad.committed) == (29, 0, 2, 27, False)
    assert (bad.version, bad.near_duplicates) == (story["grown"].version, None)
    assert (bad.reasons, bad.new_classes) == ({"not_an_image": 2}, ())
    assert story["table"].class_counts().get("cow", 0) == 0
    assert (mended.stored, mended.quarantined, mended.version) == (3, 1, bad.version + 1)
    assert (mended.changed, mended.skipped) == (4, 25)


def test_a_quarantine_that_others_keep_changing_is_told_once_the_images_are_stored(spark, tmp_path, monkeypatch):
    """The name of the source is not UTF-8, and an image is of 1874, as a camera without a clock may say."""

    def refuse(self, bad, leaving):
        raise TableConflictError("another MERGE was faster")

    source = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    write_image(Path(source) / "cat" / "1.jpg", seed=1)
    os.utime(Path(source) / "cat" / "1.jpg", (-3_000_000_000, -3_000_000_000))
    (Path(source) / "cat" / "2.jpg").write_text("no image")
    table = ImageTable(spark, tmp_path / "table")
    with monkeypatch.context() as patched:
        patched.setattr(Quarantine, "_write", refuse)
        patched.setattr(quarantine_table, "RETRIES", Retries(3, 0.01, 0.02))
        with pytest.raises(QuarantineConflictError, match=r"at version 0.*_quarantine.*\(1 files\)"):
            table.ingest(source, size=16)
    assert table.class_counts(0) == {"cat": 1}
    seen = table.preview(source)
    assert (seen.version, seen.known, seen.new) == (0, 1, 1)
    assert [entry.source for entry in table.history()] == [f"{tmp_path}/caf\\udce9"]


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        ("a file", SourceNotFoundError, "a file.* is a file"),
        ("no images", EmptySourceError, "no images.*not_an_image_name"),
    ],
)
def test_what_cannot_be_ingested_is_refused_and_nothing_is_made(spark, tmp_path, source, error, words):
    (tmp_path / "a file").write_text("x")
    (tmp_path / "no images" / "cat").mkdir(parents=True)
    (tmp_path / "no images" / "cat" / "notes.txt").write_text("x")
    with pytest.raises(error, match=words):
        ImageTable(spark, tmp_path / "table").ingest(tmp_path / source)
    assert not (tmp_path / "table").exists()


def test_a_place_that_is_taken_is_refused(spark, tmp_path):
    source = tmp_path / "source"
    write_image(source / "cat" / "1.jpg")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(NotADeltaTableError, match=r"mine exists and is not a Delta table"):
        ImageTable(spark, tmp_path / "mine").ingest(source)
    write(tmp_path / "other", images(cat=["1"]))
    with pytest.raises(NotAnImageTableError, match=r"other.*lakelens\.recipe"):
        ImageTable(spark, tmp_path / "other").ingest(source)


def test_reading_what_is_not_there_names_what_is(story, spark, tmp_path):
    with pytest.raises(NotADeltaTableError, match="nothing"):
        ImageTable(spark, tmp_path / "nothing").read()
    with pytest.raises(VersionNotFoundError, match="77"):
        story["table"].read(77)
    with pytest.raises(VersionNotFoundError, match="gold"):
        story["table"].read("gold")


def test_a_table_that_others_have_widened_emptied_and_named_is_ingested_into_and_profiled(story, spark, tmp_path):
    source, place = tmp_path / "source", shutil.copytree(story["table"].location, tmp_path / "table")
    DeltaTable(place).alter.add_columns(Field("note", "string"))
    DeltaTable(place).delete()
    write_image(source / "cow" / "1.jpg", seed=77)
    (source / "cow" / "bad.jpg").write_text("x")
    spark.sql("CREATE DATABASE IF NOT EXISTS named")
    try:
        spark.sql(f"CREATE TABLE named.images USING delta LOCATION '{place}'")
        table = ImageTable(spark, "named.images")
        result = table.ingest(source)
        assert (result.stored, result.quarantined) == (1, 1)
        assert [row.note for row in stored_rows(place)] == [None]
        assert list(table.labels()) == ["ak47", "cat", "dog", "cow"]
        # The quarantine has the table's name, and not its place.
        found = table.profile(out=tmp_path / "out", near_duplicates=False).profile
        assert dict(found.reasons) == table.quarantine().reasons == {"not_an_image": 1}
    finally:
        spark.sql("DROP DATABASE named CASCADE")


def test_a_folder_with_a_dot_in_its_relative_name_is_a_folder(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_image(Path("photos.v1/cat/1.jpg"))
    coco = {"images": [{"id": 0, "file_name": "1.jpg"}], "annotations": [], "categories": []}
    Path("photos.v1/cat/_annotations.coco.json").write_text(json.dumps(coco))
    assert ImageTable(spark, "./flowers.delta").preview("photos.v1", "coco").rows_in == 1
    with pytest.raises(NotADeltaTableError, match=r"no schema flowers.*\./flowers\.delta"):
        ImageTable(spark, "flowers.delta").ingest("photos.v1")
    assert ImageTable(spark, "./flowers.delta").preview("photos.v1").new == 1
    make_table(tmp_path / "flowers.delta", tmp_path / "photos.v1", size=SIZE)
    again = ImageTable(spark, "flowers.delta")
    assert (again.location, again.version) == (str(tmp_path / "flowers.delta"), 0)
    for gone, layout in (("gone.v2", "class_folders"), ("gone.csv", "manifest")):
        with pytest.raises(SourceNotFoundError, match=re.escape(str(tmp_path / gone))):
            again.ingest(gone, layout=layout)


def test_two_tables_by_a_name_of_three_parts_live_in_the_catalog(spark, tmp_path):
    source, database, own = tmp_path / "source", "etl_names", "`1_images`"  # which needs its quotes
    write_image(source / "cat" / "1.jpg")
    (source / "cat" / "bad.jpg").write_text("x")
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {database}")
    try:
        table = ImageTable(spark, f"`spark_catalog`.{database}.{own}")
        assert table.ingest(source, size=SIZE).stored == 1
        write_image(source / "dog" / "1.jpg", seed=1)
        result = table.ingest(source)
        assert (result.version, result.stored, result.skipped) == (table.version, 1, 2)
        assert table.class_counts() == {"cat": 1, "dog": 1}
        assert spark.catalog.tableExists(f"{database}.{quarantine_location(f'{database}.{own}').rpartition('.')[2]}")
        assert not [path for path in Path().iterdir() if "quarantine" in path.name]
        assert [file.reason for file in table.quarantine().files] == ["not_an_image"]
        assert (table.pin("first", 0), table.pins(), table.read("first").count()) == (0, {"first": 0}, 1)
        assert [info.version for info in table.history()][-1] == 0
        assert (table.labels("first"), [found.by for found in table.tracked()]) == ({"cat": 0}, ["pin first"])
        assert table.vacuum(dry_run=True).files == ()
        assert (table.restore(0).removed, table.class_counts()) == ({"dog": 1}, {"cat": 1, "dog": 0})
    finally:
        spark.sql(f"DROP DATABASE {database} CASCADE")
