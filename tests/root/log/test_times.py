"""A time names the version that Spark's time travel reads, whatever the files' times and the session's zone are."""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lakelens import ImageTable
from lakelens.errors import LakelensError, VersionNotFoundError
from lakelens.etl.versions.history import history
from lakelens.log.entries import info_of, read_commits
from lakelens.log.opening import open_table
from lakelens.table import Table

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

START = datetime(2024, 3, 31, 0, 30, tzinfo=timezone.utc)  # half an hour before Paris puts its clocks forward
REFUSED = -1
# Spark refuses times before these.
KEPT = {f"delta.{kind}RetentionDuration": "interval 100000 days" for kind in ("deletedFile", "log")}


def set_times(location: Path, minutes: list[float]) -> None:
    for version, after in enumerate(minutes):
        ns = int((START + timedelta(minutes=after)).timestamp() * 1e9)
        os.utime(location / "_delta_log" / f"{version:020d}.json", ns=(ns, ns))


def version_to_spark(spark, location: Path, text: str) -> int:
    """The version whose rows Spark reads at a time: version `n` has `n + 1` rows."""
    from pyspark.errors import PySparkException

    try:
        return spark.read.format("delta").option("timestampAsOf", text).load(str(location)).count() - 1
    except PySparkException:
        return REFUSED


def version_to_lakelens(location: Path, moment: str | datetime) -> int:
    try:
        return open_table(Table.of(location, moment)).version()
    except LakelensError:
        return REFUSED


@pytest.fixture
def zoned(spark):
    """Sets the zone of the session, and takes it back."""
    before = spark.conf.get("spark.sql.session.timeZone")
    yield lambda zone: spark.conf.set("spark.sql.session.timeZone", zone)
    spark.conf.set("spark.sql.session.timeZone", before)


def made(location: Path, minutes: list[float]) -> Path:
    for number in range(len(minutes)):
        write_deltalake(
            location, pa.table({"id": [number]}), mode="append", configuration=KEPT if number == 0 else None
        )
    set_times(location, minutes)
    return location


# Twice a slow clock, several versions in a millisecond, and one as of a copy that was written in another order.
CLOCKS = [0, 60, 30, 45, 90, 90, 90.00001, 120, -30]
WITHOUT_ZONE = [
    *[("Europe/Paris", minute) for minute in (105, 180, 210)],  # the first is in the hour that Paris leaves out
    *[("-03:30", minute) for minute in (-120, -90)],
    ("UTC", 59),
]


def test_a_time_is_the_version_of_spark_when_clocks_differ(spark, tmp_path, zoned):
    location = made(tmp_path / "t", CLOCKS)
    asked = [("UTC", START + timedelta(minutes=minute)) for minute in sorted({*CLOCKS, -1 / 60, 59, 91, 119})]
    asked += [(zone, (START + timedelta(minutes=minute)).replace(tzinfo=None)) for zone, minute in WITHOUT_ZONE]
    found, read = {}, {}
    for zone, moment in asked:
        zoned(zone)
        text = moment.isoformat(" ")
        found[zone, text] = version_to_lakelens(location, text)
        read[zone, text] = version_to_spark(spark, location, text)
    assert found == read
    assert set(found.values()) >= {REFUSED, 0, 1, 4, 6}
    assert ImageTable(spark, location).snapshot(text).version == found[zone, text]
    shown = spark.sql(f"DESCRIBE HISTORY delta.`{location}`").selectExpr("version", "unix_millis(timestamp)").collect()
    ours = {one.version: round(one.timestamp.timestamp() * 1000) for one in history(Table.of(location))}
    assert ours == {row[0]: row[1] for row in shown}


def test_a_time_is_the_version_of_spark_when_in_commit_timestamps_came_later(spark, tmp_path):
    location = made(tmp_path / "t", [0, 20, 10])
    spark.sql(f"ALTER TABLE delta.`{location}` SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')")
    spark.createDataFrame([(3,)], "id bigint").write.format("delta").mode("append").save(str(location))
    set_times(location, [0, 20, 10, 5, 400])
    own = [info_of(actions)["inCommitTimestamp"] for actions in read_commits(Table.of(location), [3, 4])]
    moments = [START + timedelta(minutes=after) for after in (-1, 0, 11, 20, 500)]
    moments += [datetime.fromtimestamp((time + shift) / 1000, tz=timezone.utc) for time in own for shift in (-1, 0)]
    rows = [1, 2, 3, 3, 4]
    found = [version_to_lakelens(location, moment) for moment in moments]
    read = [version_to_spark(spark, location, moment.isoformat(" ")) for moment in moments]
    assert [REFUSED if one == REFUSED else rows[one] - 1 for one in found] == read
    assert set(found) >= {REFUSED, 0, 2, 3, 4}


def test_versions_that_a_cleaned_log_cannot_rebuild_are_not_found_by_their_time(spark, tmp_path):
    location = made(tmp_path / "t", [0, 60, 30, 40, 120, 180])
    DeltaTable(location, version=3).create_checkpoint()
    for gone in ((0,), (1, 2)):  # commits that are left without the first one are of no use
        for version in gone:
            (location / "_delta_log" / f"{version:020d}.json").unlink()
        for after, version in ((35, REFUSED), (41, 3), (130, 4)):
            moment = START + timedelta(minutes=after)
            assert version_to_lakelens(location, moment) == version
            assert version_to_spark(spark, location, moment.isoformat(" ")) == version
    with pytest.raises(VersionNotFoundError, match=r"found no version at 2024-03-31T00:30:00.*\(versions 3 to 5\)"):
        open_table(Table.of(location, START))
