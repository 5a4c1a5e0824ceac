"""Class numbers are given once: whatever others do to the table's rows, its versions and its ledger."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from delta_rows import delta_rows
from deltalake import DeltaTable
from etl_pictures import write_image
from made_tables import append_as_another, make_table
from stored_rows import names_and_numbers

from lakelens import ImageTable
from lakelens.errors import ClassNumbersError
from lakelens.etl.commit.known_classes import record_classes
from lakelens.etl.ingest.prepare import Prepared
from lakelens.jobs.cli import main
from lakelens.ledger.store import change, read
from lakelens.table import Table

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
    source = write_class(write_class(root / "first", "a", 3), "b", 2)
    table = ImageTable(spark, make_table(root / "t", source, size=SIZE))
    append_as_a_stranger(table, "c", 2)
    record_classes(Table.of(table.location), 1, {"a": 3, "b": 2, "c": 1}, {"a": 0, "b": 1, "c": 2})
    assert (table.labels(), table.labels(0)) == ({"a": 0, "b": 1, "c": 2}, {"a": 0, "b": 1})
    return table


@pytest.fixture
def table(grown, spark, tmp_path):
    """A copy of the folder, which takes the ledger along."""
    return ImageTable(spark, shutil.copytree(grown.location, tmp_path / "50% t"))


def append_as_a_stranger(table: ImageTable, name: str, number: int) -> None:
    changed = {"path": f"s3://elsewhere/{name}.jpg", "content_hash": f"{name}{number}"}
    append_as_another(table, [{**delta_rows(table.location)[0], **changed, "label_name": name, "label": number}])


def test_a_number_that_a_restore_took_away_or_another_ingest_reserves_meanwhile_is_not_given_again(
    table, tmp_path, monkeypatch
):
    reserve = Prepared.reserve_classes

    def reserve_after_another(prepared):
        change(Table.of(table.location), lambda ledger: ledger.reserved(["faster"]))
        return reserve(prepared)

    monkeypatch.setattr(Prepared, "reserve_classes", reserve_after_another)
    DeltaTable(table.location).restore(0)  # by a tool that records nothing
    assert table.ingest(write_class(write_class(tmp_path / "more", "a", seed=77), "d")).new_classes == ("d",)
    assert table.labels() == {"a": 0, "b": 1, "c": 2, "faster": 3, "d": 4}
    assert names_and_numbers(table.location) == {("a", 0), ("b", 1), ("d", 4)}


def test_an_ingest_that_was_killed_after_its_reservation_or_after_its_commit_costs_nothing(
    table, tmp_path, monkeypatch
):
    class KilledError(Exception):
        pass

    def die(*_: object, **__: object) -> None:
        raise KilledError

    source = write_class(tmp_path / "more", "d")
    for step, committed in (("_commit", False), ("record_classes", True)):
        with monkeypatch.context() as patch:
            patch.setattr(f"lakelens.etl.ingest.run.{step}", die)
            with pytest.raises(KilledError):
                table.ingest(source)
        assert table.version == 1 + committed
        assert read(Table.of(table.location)).labels == {"a": 0, "b": 1, "c": 2, "d": 3}
    assert table.labels() == {"a": 0, "b": 1, "c": 2, "d": 3}
    assert table.history(1)[0].class_counts is None
    result = table.ingest(write_class(source, "e"))
    assert (result.stored, result.new_classes) == (1, ("e",))
    assert table.history(1)[0].class_counts == table.class_counts() == {"a": 3, "b": 2, "c": 1, "d": 1, "e": 1}
    assert names_and_numbers(table.location) == {("a", 0), ("b", 1), ("c", 2), ("d", 3), ("e", 4)}


def test_a_clone_without_a_ledger_keeps_the_numbers_of_its_rows_and_a_strangers_where_it_is_free(table, tmp_path):
    clone = ImageTable(table.spark, tmp_path / "clone")
    table.spark.sql(f"CREATE TABLE delta.`{clone.location}` SHALLOW CLONE delta.`{table.location}`").collect()
    append_as_a_stranger(clone, "e", 7)
    assert clone.labels() == {"a": 0, "b": 1, "c": 2, "e": 7}
    clone.ingest(write_class(write_class(tmp_path / "more", "d"), "e"))
    assert clone.labels() == {"a": 0, "b": 1, "c": 2, "e": 7, "d": 8}
    assert names_and_numbers(clone.location) == {("a", 0), ("b", 1), ("c", 2), ("e", 7), ("d", 8)}


def test_damage_is_refused_by_an_ingest_and_repaired_by_one_commit(table, tmp_path):
    append_as_a_stranger(table, "e", 1)
    append_as_a_stranger(table, "a", 5)
    latest, source = table.version, write_class(tmp_path / "more", "d")
    with pytest.raises(ClassNumbersError, match=r"1 row.* of 'e' .* 1,.*'b'.*lakelens table repair") as caught:
        table.ingest(source)
    assert "'a'" in str(caught.value)
    planned = table.repair(dry_run=True)
    assert (planned.committed, table.version, planned.labels["e"]) == (False, latest, 6)
    assert planned.changes[1] == "1 of 'e': number 1 becomes 6"
    before = Counter(row["content_hash"] for row in delta_rows(table.location))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["table", "repair", table.location]) == 0
    *lines, last = printed.getvalue().splitlines()
    assert set(planned.findings) | set(planned.changes) <= set(lines)
    repaired = json.loads(last)
    assert (repaired["committed"], repaired["version"]) == (True, latest + 1)
    assert table.labels() == {"a": 0, "b": 1, "c": 2, "e": 6}
    assert names_and_numbers(table.location) == {("a", 0), ("b", 1), ("c", 2), ("e", 6)}
    assert Counter(row["content_hash"] for row in delta_rows(table.location)) == before
    assert table.ingest(source).new_classes == ("d",)
    assert table.labels()["d"] == 7
    # What is restored has the old damage again, and is refused again.
    table.restore(latest)
    with pytest.raises(ClassNumbersError):
        table.ingest(write_class(tmp_path / "later", "f"))
