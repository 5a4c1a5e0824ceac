"""Which version a feed reads: a number, a time, a pin or the latest, resolved once and recorded as a number."""

from __future__ import annotations

import json
import os
import pickle
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from feed_tables import append, image_rows, in_a_process, write_layout
from snapshots import open_snapshot

from lakelens import DeltaFeed
from lakelens.errors import VersionNotFoundError
from lakelens.ledger.protection import set_pin, unpin
from lakelens.table import Table

pytestmark = pytest.mark.unit

START = datetime(2024, 5, 1, 12, tzinfo=timezone.utc)


def commit_of(location: Path, version: int) -> Path:
    return location / "_delta_log" / f"{version:020d}.json"


def rewrite_commit(location: Path, version: int, kind: str, **said: object) -> None:
    """Changes an action of a commit, whose file keeps its time."""
    commit = commit_of(location, version)
    before = commit.stat()
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        action.get(kind, {}).update(said)
    commit.write_text("\n".join(json.dumps(a) for a in sorted(actions, key=lambda a: "commitInfo" not in a)) + "\n")
    os.utime(commit, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.fixture
def table(tmp_path) -> Path:
    """Versions 0, 1 and 2 of 4, 8 and 12 rows, committed an hour after each other."""
    location = write_layout(tmp_path / "t", [4, 4, 4])
    for version in range(3):
        when = START + timedelta(hours=version)
        os.utime(commit_of(location, version), (when.timestamp(), when.timestamp()))
    return location


def version_of(location: Path, version) -> int:
    return DeltaFeed(location, version).version


def test_the_latest_is_resolved_once_and_recorded(table):
    feed = DeltaFeed(table)
    append(table, image_rows(range(100, 105)))
    assert (feed.version, feed.rows) == (2, 12)
    assert (pickle.loads(pickle.dumps(feed)).version, version_of(table, "latest")) == (2, 3)


def test_a_pin_is_the_version_that_it_named_when_the_feed_was_built(table):
    set_pin(Table.of(table), "golden", 1, lambda: None)
    feed = DeltaFeed(table, "golden")
    set_pin(Table.of(table), "golden", 2, lambda: None, replace=True)
    assert (feed.version, feed.rows, version_of(table, "golden")) == (1, 8, 2)
    unpin(Table.of(table), "golden")
    with pytest.raises(VersionNotFoundError, match=r"'golden' is not a version number, time .* or pin"):
        DeltaFeed(table, "golden")


def test_a_time_is_the_last_version_committed_by_then_in_a_clone_too(table):
    """The first commit of a shallow clone says that it read version -1; delta-rs' history refuses that as damaged."""
    second, hour = timedelta(seconds=1), timedelta(hours=1)
    for operation in ({}, {"operation": "CLONE", "readVersion": -1}):
        rewrite_commit(table, 0, "commitInfo", **operation)
        moments = (START, START + hour - second, START + hour, "2024-05-01T13:30:00Z", "2024-05-01T15:30:00+02:00")
        assert [version_of(table, moment) for moment in (*moments, START + 2 * hour)] == [0, 0, 1, 1, 1, 2]
        assert [open_snapshot(table, n).timestamp for n in (0, 1, None)] == [START, START + hour, START + 2 * hour]
    with pytest.raises(VersionNotFoundError, match=r"found no version at .*covers 2024-05-01T12:00.*0 to 2"):
        DeltaFeed(table, START - second)
    with pytest.raises(VersionNotFoundError, match=r"is after the last commit, version 2 of 2024-05-01T14:00"):
        DeltaFeed(table, START + 3 * hour)


def test_a_time_is_refused_where_a_commit_lacks_the_in_commit_timestamp(table):
    rewrite_commit(table, 0, "metaData", configuration={"delta.enableInCommitTimestamps": "true"})
    for version in (0, 2):
        when = START + timedelta(minutes=80 * version)
        rewrite_commit(table, version, "commitInfo", inCommitTimestamp=int(when.timestamp() * 1000))
    with pytest.raises(VersionNotFoundError, match=r"holds commits without a time, .*version 1.*give the number"):
        version_of(table, START + timedelta(minutes=30))
    rewrite_commit(table, 1, "commitInfo", inCommitTimestamp=int((START + timedelta(minutes=80)).timestamp() * 1000))
    assert version_of(table, START + timedelta(minutes=70)) == 0
    assert version_of(table, START + timedelta(minutes=90)) == 1


def test_a_time_without_a_zone_is_refused_without_a_session(table):
    code = "try: DeltaFeed(sent, {!r})\nexcept InvalidArgumentError as error: print(error)\n"
    named = ("2024-05-01 14:00", "2024-05-02", "2024-05-01T13:00:00.5")
    said = in_a_process("from lakelens import DeltaFeed\n" + "".join(map(code.format, named)), table)
    assert said.count("has no zone") == len(named)
