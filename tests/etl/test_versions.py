"""What versions hold, how they differ, and what a VACUUM may not take."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake

from lakelens.errors import (
    InvalidArgumentError,
    NotADeltaTableError,
    VersionFilesMissingError,
    VersionNotFoundError,
    VersionProtectedError,
)
from lakelens.etl import pins, versions
from lakelens.etl.snapshot import open_snapshot

pytestmark = pytest.mark.unit


def images(**classes: list[str]) -> pa.Table:
    """Rows by class: each text is a path, with `path=content` where the content is not the path."""
    rows = [(text.split("=")[0], text, name) for name, texts in classes.items() for text in texts]
    path, content, name = ([row[i] for row in rows] for i in range(3))
    return pa.table({"path": path, "content_hash": content, "label_name": name})


def write(table: Path, rows: pa.Table, mode: str = "append") -> None:
    note = json.dumps({"lakelens": "ingest", "batch_id": "b1", "source": "/photos", "user": "ann"})
    write_deltalake(
        str(table), rows, mode=mode, commit_properties=CommitProperties(custom_metadata={"userMetadata": note})
    )


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Version 0: two cats and a dog. Version 1: two more dogs. Version 2: all rewritten, one gone, one changed."""
    place = tmp_path / "a table, 100%"
    write(place, images(cat=["c1", "c2"], dog=["d1"]))
    write(place, images(dog=["d2", "d3"]))
    write(place, images(cat=["c1", "c2=new"], dog=["d2", "d3"], cow=["w1"]), mode="overwrite")
    return place


def test_history_says_rows_classes_batch_and_who_newest_first(table: Path) -> None:
    found = versions.history(table)
    assert [entry.version for entry in found] == [2, 1, 0]
    assert [entry.rows for entry in found] == [5, 5, 3]
    assert found[2].class_counts == {"cat": 2, "dog": 1}
    assert found[0].class_counts == {"cat": 2, "cow": 1, "dog": 2}
    assert (found[0].batch_id, found[0].source, found[0].user) == ("b1", "/photos", "ann")
    assert found[0].timestamp >= found[2].timestamp


def test_a_commit_that_is_no_ingest_has_no_batch(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), images(cat=["c1"]))
    (entry,) = versions.history(tmp_path / "t")
    assert (entry.rows, entry.batch_id, entry.user) == (1, None, None)


def test_a_diff_counts_added_removed_and_changed_rows_by_class(table: Path) -> None:
    assert versions.diff(table, 0, 1) == versions.VersionDiff(0, 1, {"dog": 2}, {}, {})
    assert versions.diff(table, 1) == versions.VersionDiff(1, 2, {"cow": 1}, {"dog": 1}, {"cat": 1})
    assert versions.diff(table, 2, 0) == versions.VersionDiff(2, 0, {"dog": 1}, {"cow": 1, "dog": 2}, {"cat": 1})
    assert versions.diff(table, 2, 2) == versions.VersionDiff(2, 2, {}, {}, {})


def test_versions_that_never_were_are_named(table: Path, tmp_path: Path) -> None:
    with pytest.raises(VersionNotFoundError, match=r"version 9 does not exist"):
        versions.diff(table, 0, 9)
    with pytest.raises(NotADeltaTableError, match="holds no Delta table"):
        versions.history(tmp_path)


def vacuum_now(table: Path, **options: bool) -> versions.VacuumResult:
    return versions.vacuum(table, 0, allow_short_retention=True, **options)


@pytest.mark.parametrize(("pin", "run"), [("golden", None), (None, "run-7")])
def test_vacuum_refuses_to_take_files_of_a_pinned_or_used_version_and_says_which(
    table: Path, pin: str | None, run: str | None
) -> None:
    if pin:
        pins.pin(str(table), pin, 1)
    if run:
        pins.track(str(table), 1, run)
    with pytest.raises(
        VersionProtectedError, match=rf"version 1 \({'pin golden' if pin else 'run run-7'}\).*keep_prot"
    ):
        vacuum_now(table)
    assert all(Path(open_snapshot(table, 1).file_location(i)).exists() for i in range(2))


def test_vacuum_can_take_the_rest_and_leave_protected_versions_whole(table: Path) -> None:
    write(table, images(dog=["x"]), mode="overwrite")
    pins.pin(str(table), "golden", 0)
    result = vacuum_now(table, keep_protected=True)
    assert result.kept == {0: ("pin golden",)}
    pinned, between = open_snapshot(table, 0), open_snapshot(table, 2)
    assert all(Path(pinned.file_location(i)).exists() for i in range(len(pinned.files)))
    assert not any(Path(between.file_location(i)).exists() for i in range(len(between.files)))
    assert versions.class_counts(pinned) == {"cat": 2, "dog": 1}
    rows = {entry.version: entry.class_counts for entry in versions.history(table)}
    assert rows[2] is None
    assert rows[3] == {"dog": 1}


def test_a_dry_run_takes_nothing(table: Path) -> None:
    result = vacuum_now(table, dry_run=True)
    assert result.dry_run
    assert len(result.files) == 2
    assert all((table / path).exists() for path in result.files)
    assert set(vacuum_now(table).files) == set(result.files)
    assert not any((table / path).exists() for path in result.files)


def test_pins_and_tracked_versions_outlive_a_vacuum(table: Path) -> None:
    pins.pin(str(table), "latest-good", 2)
    vacuum_now(table)
    assert pins.pins(str(table)) == {"latest-good": 2}


@pytest.mark.parametrize(("hours", "words"), [(-1, "0 or more"), (1.5, "whole hours"), (24, "below 168.*allow_short")])
def test_a_retention_is_long_unless_asked_for_on_purpose(table: Path, hours: int, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        versions.vacuum(table, hours)


def test_a_feed_of_a_vacuumed_version_says_so(table: Path) -> None:
    vacuum_now(table)
    from lakelens import DeltaFeed

    with pytest.raises(VersionFilesMissingError, match=r"@0.*are gone"):
        DeltaFeed(table, 0, image_column="path", label_column=None)
