"""Sources that only Spark can open: a URI of a file system that is not the local one, with any name in it.

Hadoop's viewfs is such a file system without a server: it mounts a local folder below any scheme's URIs.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from etl_pictures import encoded, picture, write_image
from mounted_folders import account, mount
from problems import reasons
from stored_rows import stored_rows

from lakelens import ImageTable
from lakelens.errors import SessionError, SourceNotFoundError
from lakelens.etl.files import Wanted
from lakelens.etl.ingest.prepare import list_source, prepare
from lakelens.etl.ingest.results import IngestRequest
from lakelens.etl.ingest.run import run_prepared
from lakelens.etl.sources import folders
from lakelens.etl.sources.source import Source
from lakelens.etl.spark.writing_session import writing_session
from lakelens.table import Table

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

NAMES = ["a b.jpg", "100%.jpg", "%41.jpg", "ü犬.jpg", "a[1]{x}.jpg", "a#b?.jpg", "'q'.jpg", "a+b&c=d.jpg"]


@pytest.fixture(scope="module")
def mounted(spark, tmp_path_factory):
    """A local folder and the URI that it has in Azure's file system."""
    root = tmp_path_factory.mktemp("mounted")
    # Not abfss, which has no driver in another test.
    with mount(spark, "abfs", f"images@{account()}.dfs.core.windows.net", root) as uri:
        yield root, uri


@pytest.fixture(scope="module")
def story(spark, mounted, tmp_path_factory):
    root, uri = mounted
    source = root / "images of é 50%"
    for number, name in enumerate(NAMES):
        write_image(source / "001.cat & co" / name, seed=number)
    write_image(source / "dog" / "deep er" / "1.png", seed=50)
    (source / "dog" / "text.jpg").write_text("no image")
    (source / "dog" / "empty.jpg").touch()
    (source / "dog" / "RENAME2").write_text("notes")
    for name in ("_MG_0001.jpg", ".hidden.jpg", "Thumbs.db"):
        write_image(source / "dog" / name, seed=54)
    write_image(source / "loose.jpg", seed=51)
    table = ImageTable(spark, tmp_path_factory.mktemp("tables") / "t")
    place = f"{uri}/images of é 50%"
    lost = ingest_while_a_file_goes(spark, table, place, source / "dog" / "going.jpg")
    commits_of_lost = list((Path(table.location) / "_delta_log").glob("*.json"))
    first = table.ingest(place, size=16, keep_folder_names=False)
    (source / "dog" / "text.jpg").write_bytes(encoded(picture(52)))
    (source / "dog" / "empty.jpg").write_bytes(encoded(picture(55)))
    (source / "001.cat & co" / NAMES[0]).write_bytes(encoded(picture(53)))
    (source / "001.cat & co" / NAMES[1]).touch()
    later = table.preview(place)
    told = {"table": table, "place": place, "lost": lost, "commits of lost": commits_of_lost}
    return {**told, "first": first, "later": later}


def ingest_while_a_file_goes(spark, table: ImageTable, place: str, file: Path) -> Exception | None:
    """Writes a file that is listed and then lost while it is read; gives the error of the ingest."""
    write_image(file)
    with prepare(spark, Table(table.location), IngestRequest(Source(place), {"size": 16})) as prepared:
        read = prepared.listing.read_contents

        def read_and_lose(files, at_once):
            found = read(files, at_once)  # Spark has looked at each file now, and read none
            file.unlink()
            return found

        losing = replace(prepared, listing=replace(prepared.listing, read_contents=read_and_lose))
        try:
            run_prepared(losing)
        except Exception as error:  # noqa: BLE001  shown by the test
            return error
    return None


def test_a_file_that_goes_while_it_is_read_is_named_and_nothing_is_committed(story):
    assert isinstance(story["lost"], SourceNotFoundError), story["lost"]
    assert re.search(r"dog/going\.jpg.* run the ingest again", str(story["lost"]))
    assert story["commits of lost"] == []
    assert story["first"].version == 0


def test_any_name_in_any_file_system_is_stored(story):
    first, place = story["first"], story["place"]
    assert (first.rows_in, first.stored, first.quarantined) == (len(NAMES) + 3, len(NAMES) + 1, 2)
    assert first.reasons == {"not_an_image": 1, "empty": 1}
    assert first.ignored == {
        "not_an_image_name": 1,
        "no_class_folder": 1,
        "name_starts_with_underscore": 1,
        "hidden": 2,
    }
    rows = {row.path: row for row in stored_rows(story["table"].location, 0)}
    assert {path for path in rows if rows[path].label_name == "cat & co"} == {
        f"{place}/001.cat & co/{name}" for name in NAMES
    }
    assert rows[f"{place}/dog/deep er/1.png"].label_name == "dog"


def test_changed_and_mended_files_of_another_file_system_are_taken_again_and_touched_ones_are_not(story):
    later = story["later"]
    assert (later.changed, later.known, later.new, later.rows_in) == (3, len(NAMES), 0, len(NAMES) + 3)


def test_images_are_found_and_read_below_a_scheme_without_an_authority(spark, tmp_path):
    data = {name: write_image(tmp_path / "pets" / "001.cat é" / name, seed=seed) for seed, name in enumerate(NAMES)}
    with mount(spark, "dbfs", "", tmp_path) as uri:
        listing = list_source(writing_session(spark), Source(f"{uri}/pets"))
        read = {row.path: row for row in listing.read_contents(listing.files, 10).collect()}
    assert {path: bytes(row.content) for path, row in read.items()} == {
        f"{uri}/pets/001.cat é/{name}": content for name, content in data.items()
    }
    assert {row.label_name for row in read.values()} == {"cat é"}


def test_the_root_of_a_bucket_names_its_classes_like_any_folder(spark, monkeypatch):
    files = "SELECT 's3a://bucket/001.cat/1.jpg' AS path, 3L AS source_length, timestamp_seconds(0) AS source_modified"
    monkeypatch.setattr(folders, "_all_files", lambda *_: spark.sql(files))
    listings = []
    for root in ("s3a://bucket/", "s3a://bucket"):  # Hadoop leaves a root its slash
        monkeypatch.setattr(folders, "qualified_folder", lambda *_, root=root: root)
        listings.append(folders.list_folder_by_spark(spark, root, Wanted("class_folders")).files)
    found = listings[0].unionByName(listings[1]).collect()
    assert [(row.label_name, row.label_rank, row.ignored) for row in found] == [("cat", 1, None)] * 2


def test_annotations_in_another_file_system_find_their_images(spark, mounted):
    root, uri = mounted
    folder = root / "coco é"
    data = write_image(folder / "train" / "a b%.jpg", seed=1)
    write_image(folder / "train" / "alone.jpg", seed=2)
    content = {
        "images": [{"id": 1, "file_name": "a b%.jpg", "width": 60, "height": 40}, {"id": 2, "file_name": "gone.jpg"}],
        "annotations": [{"image_id": 1, "category_id": 1, "bbox": [0, 0, 30, 20]}],
        "categories": [{"id": 1, "name": "cat"}],
    }
    (folder / "train" / "_annotations.coco.json").write_text(json.dumps(content))
    write_image(folder / "train" / "_MG_1.jpg", seed=3)
    rows = [f"coco é/train/{name},cat\n" for name in ("a b%.jpg", "none.jpg", "_MG_1.jpg")]
    (root / "labels.csv").write_text("".join(["path,label\n", *rows]))
    drawn = {"alone.jpg": ["annotation_missing"], "gone.jpg": ["image_missing"]}
    named = {"none.jpg": ["image_missing"], "_MG_1.jpg": ["image_missing"]}
    for source, bad, label, boxes in (
        (Source(f"{uri}/coco é", "coco"), drawn, None, [("cat", 0, 0, 30, 20, False)]),
        (Source(f"{uri}/labels.csv", "manifest"), named, "cat", []),
    ):
        listing = list_source(writing_session(spark), source)
        try:
            rows = listing.read_contents(listing.files.where("ignored IS NULL"), 10).collect()
        finally:
            listing.release()
        found = {row.path.rpartition("/")[2]: row for row in rows}
        there = found.pop("a b%.jpg")
        assert (there.path, bytes(there.content), reasons(there)) == (f"{uri}/coco é/train/a b%.jpg", data, [])
        assert (there.source_length, there.label_name) == (len(data), label)
        assert [tuple(box) for box in there.boxes or ()] == boxes
        assert {name: reasons(row) for name, row in found.items()} == bad
    assert (root / "labels.csv").exists()


def test_a_store_that_spark_has_no_file_system_for_is_refused_with_the_package(spark, tmp_path):
    def refused(location, words):
        return pytest.raises(SessionError, match=rf"^{location}.*: Spark has no file system for {words}")

    table = ImageTable(spark, str(tmp_path / "t"))
    azure = ("abfss://c@lake.dfs.core.windows.net/t", r"abfss://\. Start .*package org\.apache\.hadoop:hadoop-azure")
    for location, words in (
        azure,
        (
            "gs://bucket/t",
            r"gs://\. Start .*-shaded of com\.google\.cloud\.bigdataoss:gcs-connector in spark\.jars, .*gs\.impl=",
        ),
        ("nope://bucket/t", r"nope://\. Start .*known are s3a \(org\.apache\.hadoop:hadoop-aws\)"),
    ):
        with refused(location, words):
            table.ingest(location)
    with refused(*azure):
        ImageTable(spark, azure[0]).ingest(str(tmp_path))
    with refused(*azure):
        table.ingest(f"{azure[0]}.csv", layout="manifest")
    with refused(*azure):
        ImageTable(spark, azure[0]).read(0)
