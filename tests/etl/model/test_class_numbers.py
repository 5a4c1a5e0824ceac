"""Class numbers are given once: whatever others do to the table's property, its rows and its versions."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from delta_rows import delta_rows
from etl_pictures import write_image
from pyspark.sql import functions as F

from lakelens import ImageTable
from lakelens.errors import ClassNumbersError, TableConflictError
from lakelens.etl.commit import commit
from lakelens.etl.commit.commit import open_transaction
from lakelens.etl.commit.transaction import Batch
from lakelens.etl.log.notes import write_note
from lakelens.etl.model.labels import LABELS_PROPERTY
from lakelens.jobs.cli import main

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SIZE = 16


def write_class(folder: Path, name: str, images: int = 1, seed: int = 0) -> Path:
    for number in range(images):
        write_image(folder / name / f"{name}{number}.jpg", seed=seed + 1000 * sum(name.encode()) + number)
    return folder


@pytest.fixture(scope="module")
def grown(spark, tmp_path_factory):
    """Version 0 has the classes a and b, the latest has c too; to be copied."""
    root = tmp_path_factory.mktemp("numbers")
    table = ImageTable(spark, root / "t")
    table.ingest(write_class(write_class(root / "first", "a", 3), "b", 2), size=SIZE)
    table.ingest(write_class(root / "second", "c"))
    assert table.labels() == {"a": 0, "b": 1, "c": 2}
    return table


@pytest.fixture
def table(grown, spark, tmp_path):
    return ImageTable(spark, shutil.copytree(grown.location, tmp_path / "50% t"))


def numbers_of(table: ImageTable, version: int | None = None) -> set[tuple[str, int]]:
    return {(row["label_name"], row["label"]) for row in delta_rows(table.location, version)}


def sql(table: ImageTable, statement: str) -> None:
    table.spark.sql(statement.format(t=f"delta.`{table.location}`")).collect()


def append_as_a_stranger(table: ImageTable, name: str, number: int) -> None:
    row = table.read().limit(1).withColumn("path", F.lit(f"s3://elsewhere/{name}.jpg"))
    row = row.withColumns({"label_name": F.lit(name), "label": F.lit(number), "content_hash": F.lit(f"{name}{number}")})
    row.write.format("delta").mode("append").save(table.location)


def forget_notes(table: ImageTable) -> None:
    """Makes the log one of a writer that notes nothing beside its commits."""
    for file in (Path(table.location) / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in file.read_text().split("\n") if line]
        for action in actions:
            action.get("commitInfo", {}).pop("userMetadata", None)
        file.write_text("".join(json.dumps(action) + "\n" for action in actions))
        for checksum in (file.with_name(f".{file.name}.crc"), file.with_suffix(".crc")):
            checksum.unlink(missing_ok=True)


def test_a_number_that_a_plain_restore_took_away_is_not_given_again(table, tmp_path):
    sql(table, "RESTORE TABLE {t} TO VERSION AS OF 0")
    assert table.labels() == {"a": 0, "b": 1}
    result = table.ingest(write_class(tmp_path / "more", "d"))
    assert table.labels() == {"a": 0, "b": 1, "c": 2, "d": 3}
    assert numbers_of(table) == {("a", 0), ("b", 1), ("d", 3)}
    assert result.new_classes == ("d",)


def test_a_number_is_not_given_again_once_ingests_without_a_new_class_followed_its_loss(table, tmp_path):
    sql(table, "RESTORE TABLE {t} TO VERSION AS OF 0")
    assert table.ingest(write_class(tmp_path / "more", "a", seed=77)).new_classes == ()
    table.ingest(write_class(tmp_path / "further", "d"))
    assert table.labels() == {"a": 0, "b": 1, "c": 2, "d": 3}


def test_a_restore_that_was_killed_before_its_labels_costs_no_number(table, tmp_path):
    table.restore(0)
    commit_of_labels = list((Path(table.location) / "_delta_log").glob(f"*{table.version:020d}.*"))
    assert any("SET TBLPROPERTIES" in file.read_text() for file in commit_of_labels if file.suffix == ".json")
    for file in commit_of_labels:
        file.unlink()
    table = ImageTable(table.spark, shutil.copytree(table.location, tmp_path / "killed"))
    table.ingest(write_class(tmp_path / "more", "d"))
    assert table.labels() == {"a": 0, "b": 1, "c": 2, "d": 3}


def test_numbers_outlive_a_property_that_was_unset(table, tmp_path):
    sql(table, "ALTER TABLE {t} UNSET TBLPROPERTIES ('" + LABELS_PROPERTY + "')")
    table.ingest(write_class(tmp_path / "more", "d"))
    assert table.labels() == {"a": 0, "b": 1, "c": 2, "d": 3}
    assert numbers_of(table) == {("a", 0), ("b", 1), ("c", 2), ("d", 3)}


def test_a_table_whose_log_has_no_notes_keeps_the_numbers_of_its_older_versions(table, tmp_path):
    forget_notes(table)
    table = ImageTable(table.spark, shutil.copytree(table.location, tmp_path / "forgotten"))
    sql(table, "RESTORE TABLE {t} TO VERSION AS OF 0")
    sql(table, "ALTER TABLE {t} UNSET TBLPROPERTIES ('" + LABELS_PROPERTY + "')")
    table.ingest(write_class(tmp_path / "more", "d"))
    assert table.labels() == {"a": 0, "b": 1, "c": 2, "d": 3}


def test_a_strangers_number_is_kept_where_it_is_free(table, tmp_path):
    append_as_a_stranger(table, "e", 7)
    table.ingest(write_class(write_class(tmp_path / "more", "d"), "e"))
    assert table.labels() == {"a": 0, "b": 1, "c": 2, "e": 7, "d": 8}
    assert numbers_of(table) == {("a", 0), ("b", 1), ("c", 2), ("e", 7), ("d", 8)}


def test_damage_is_in_the_history_refused_by_an_ingest_and_mended_by_one_commit(table, tmp_path):
    append_as_a_stranger(table, "e", 1)
    append_as_a_stranger(table, "a", 5)
    assert [entry.damage for entry in table.history(3)] == [
        ("'a' has the number 5 in its rows, and 0 in versions before",),
        ("'e' has the number 1 in its rows, which is that of 'b'",),
        (),
    ]
    latest, source = table.version, write_class(tmp_path / "more", "d")
    with pytest.raises(ClassNumbersError, match=r"1 row.* of 'e' .* 1,.*'b'.*lakelens table repair") as caught:
        table.ingest(source)
    assert "'a'" in str(caught.value)
    assert table.version == latest
    planned = table.repair(dry_run=True)
    assert (planned.committed, table.version, planned.labels["e"]) == (False, latest, 6)
    assert planned.changes[1] == "1 of 'e': number 1 becomes 6"
    before = Counter(row["content_hash"] for row in delta_rows(table.location))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["table", "repair", table.location, "--yes"]) == 0
    *lines, last = printed.getvalue().splitlines()
    assert set(planned.findings) | set(planned.changes) <= set(lines)
    repaired = json.loads(last)
    assert (repaired["committed"], repaired["version"], repaired["version"] > latest) == (True, table.version, True)
    assert table.labels() == {"a": 0, "b": 1, "c": 2, "e": 6}
    assert numbers_of(table) == {("a", 0), ("b", 1), ("c", 2), ("e", 6)}
    assert Counter(row["content_hash"] for row in delta_rows(table.location)) == before
    assert not table.repair().committed
    assert table.ingest(source).new_classes == ("d",)
    assert table.labels()["d"] == 7
    assert [entry.damage for entry in table.history(2)] == [(), ()]
    # What is restored has the old damage again, and is refused again.
    table.restore(latest)
    with pytest.raises(ClassNumbersError):
        table.ingest(write_class(tmp_path / "later", "f"))


def test_a_property_that_contradicts_the_rows_is_refused_and_mended(table, tmp_path):
    sql(table, "ALTER TABLE {t} SET TBLPROPERTIES ('" + LABELS_PROPERTY + "' = '{{\"a\": 4}}')")
    assert "'a' has the number 4" in table.history()[0].damage[0]
    with pytest.raises(ClassNumbersError, match="'a'"):
        table.ingest(write_class(tmp_path / "more", "d"))
    assert table.repair(dry_run=True).findings
    assert table.repair().committed
    assert table.labels() == {"a": 0, "b": 1, "c": 2}


def test_of_two_public_writers_with_new_classes_none_takes_the_others_number(table, monkeypatch, tmp_path):
    monkeypatch.setenv(commit.ENGINE_VARIABLE, commit.PUBLIC)
    first, second = (open_transaction(table.spark, table.location) for _ in range(2))
    labels = {"a": 0, "b": 1, "c": 2}
    rows = table.read().where("label_name = 'c'")
    of_d = rows.withColumns({"path": F.lit("d.jpg"), "label_name": F.lit("d"), "label": F.lit(3)})
    write, latest, refused = first._append, second._latest, []

    def write_after_the_other(batch):
        second_batch = Batch(rows, "second", properties={LABELS_PROPERTY: json.dumps({**labels, "e": 3})})
        try:
            second.commit(second_batch)
        except TableConflictError as error:
            refused.append(error)
        write(batch)

    monkeypatch.setattr(first, "_append", write_after_the_other)
    # Past its own first look, as when both look before either writes.
    monkeypatch.setattr(second, "_latest", lambda: latest() if "e" in table.labels() else second.version)
    note = write_note("ingest", {**labels, "d": 3}, None)
    done = first.commit(Batch(of_d, note, properties={LABELS_PROPERTY: json.dumps({**labels, "d": 3})}))
    assert len(refused) == 1
    assert table.labels() == {**labels, "d": 3}
    assert numbers_of(table, done.version) == {("a", 0), ("b", 1), ("c", 2), ("d", 3)}
    table.ingest(write_class(tmp_path / "more", "e"))
    assert table.labels() == {**labels, "d": 3, "e": 4}
