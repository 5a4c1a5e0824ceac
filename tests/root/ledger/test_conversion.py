"""The first ledger of a table that an earlier lakelens has written."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake
from version_tables import set_configuration

from lakelens.errors import LedgerError
from lakelens.ledger.ledger import ClassRows, Pin, Use
from lakelens.ledger.store import change, read
from lakelens.liveness import Process
from lakelens.table import Table

pytestmark = pytest.mark.system

SINCE = datetime(2026, 3, 1, tzinfo=timezone.utc)


def earlier(place: Path) -> Table:
    """A table of three commits: two that note classes, one of another writer."""
    notes = [
        {"lakelens": "ingest", "classes": {"cat": [0, 2], "dog": [1, 1]}},
        {"lakelens": "rename", "classes": {"cat": [0, 2], "hound": [1, 1], "bee": [2, None]}},
    ]
    properties = {
        "lakelens__recipe": "{}",
        "lakelens__labels": json.dumps({"cat": 0, "hound": 1, "ant": 7, "wrong": 0}),
        "lakelens__aliases": json.dumps({"dog": "hound", "pup": "hound"}),
    }
    for note, mode in zip([*notes, None], ("error", "append", "append"), strict=True):
        commit = CommitProperties(custom_metadata={} if note is None else {"userMetadata": json.dumps(note)})
        rows = pa.table({"label_name": ["cat"]})
        write_deltalake(str(place), rows, mode=mode, commit_properties=commit)
    set_configuration(place, 0, **properties)
    records = {
        "pins/gold": {"name": "gold", "version": 1, "created": SINCE.isoformat()},
        "tracked/1-run": {"version": 1, "run_id": "run", "created": SINCE.isoformat(), "tracking_uri": "file:///m"},
        "tracked/0-at-work": {
            **{"version": 0, "run_id": "at-work", "created": SINCE.isoformat(), "renewed": SINCE.isoformat()},
            "process": {"machine": "m", "pid": 7, "started": 1.5},
        },
    }
    for name, record in records.items():
        file = place / "_lakelens" / f"{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(record))
    return Table.of(place)


def test_classes_pins_and_uses_of_an_earlier_table_are_read_and_taken_over_by_the_first_change(tmp_path):
    table = earlier(tmp_path / "t")
    found = read(table)
    assert found.labels == {"cat": 0, "hound": 1, "bee": 2, "ant": 7}
    assert found.aliases == {"dog": "hound", "pup": "hound"}
    assert found.versions == {0: {"cat": ClassRows(0, 2), "dog": ClassRows(1, 1)}}
    assert found.pins == (Pin("gold", 1, SINCE),)
    at_work = Use("at-work", 0, SINCE, SINCE, Process("another host", "m", 7, 1.5))
    assert set(found.uses) == {Use("run", 1, SINCE, SINCE, None, "file:///m"), at_work}
    assert (tmp_path / "t" / "_lakelens" / "pins" / "gold.json").exists()
    assert change(table, lambda ledger: ledger.reserved(["new"])).labels["new"] == 8
    assert [path.name for path in (tmp_path / "t" / "_lakelens").glob("*/*.json")] == []
    assert read(table).pins == found.pins


def test_rows_by_class_belong_to_the_number_of_their_commit_also_behind_one_without_commit_info(tmp_path):
    table = earlier(tmp_path / "t")
    write_deltalake(
        str(tmp_path / "t"),
        pa.table({"label_name": ["cat"]}),
        mode="append",
        commit_properties=CommitProperties(
            custom_metadata={"userMetadata": json.dumps({"lakelens": "ingest", "classes": {"cat": [0, 4]}})}
        ),
    )
    commit = tmp_path / "t" / "_delta_log" / f"{2:020d}.json"
    commit.write_text("".join(line for line in commit.read_text().splitlines(True) if "commitInfo" not in line))
    assert read(table).versions == {0: {"cat": ClassRows(0, 2), "dog": ClassRows(1, 1)}, 3: {"cat": ClassRows(0, 4)}}


def test_a_table_of_another_writer_has_an_empty_ledger(tmp_path):
    write_deltalake(str(tmp_path / "t"), pa.table({"label_name": ["cat"]}))
    assert read(Table.of(tmp_path / "t")).classes == ()
    assert read(Table.of(tmp_path / "none")).classes == ()


@pytest.mark.parametrize("text", ['{"name": "gold"', '{"name": "gold"}', '{"version": 0}', "[]"])
def test_a_pin_that_cannot_be_read_is_refused_by_its_file(tmp_path, text):
    table = earlier(tmp_path / "t")
    (tmp_path / "t" / "_lakelens" / "pins" / "gold.json").write_text(text)
    with pytest.raises(LedgerError, match=r"gold\.json is damaged.*Delete the file"):
        read(table)
