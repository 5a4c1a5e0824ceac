"""The versions of an image table, without Spark: what they hold, pins, differences, VACUUM."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import InvalidArgumentError, SessionError
from ...ledger.protection import pins, unpin, untrack, untrack_older
from ...log.opening import SETTING, require_entries, with_zone, zone_named
from ...log.snapshot import Snapshot, open_snapshot
from ...options import named_options
from ...spark.port import option_of
from ...spark.session import require_delta
from ...table import Table, version_of
from ...table import Version as Version
from ..quarantine import QuarantineList, list_quarantine, quarantine_location
from ..spark.catalog import is_delta_table, require_delta_table, resolved
from ..spark.failures import failures_named
from .changes import VersionDiff, changes, class_counts, diff, labels_at
from .history import VersionInfo, history
from .vacuum import Protection, VacuumResult, pin_version, protections, vacuum

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


class TableVersions:
    """The part of `ImageTable` that needs no Spark.

    Args:
        spark: A session with Delta Lake, or None; only needed for names of a catalog.
        location: Path or URI of the table, or, with a session, its name in the catalog.
        storage_options: Access to an object store, under delta-rs' names.
    """

    @named_options
    def __init__(
        self,
        spark: SparkSession | None,
        location: str | Path,
        *,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        if spark is not None:
            require_delta(spark)
        self._spark = spark
        # Under the name that it was given, which Spark resolves; there may be no table yet.
        self._named = Table.unversioned(location, type(self).__name__, storage_options)

    @property
    def location(self) -> str:
        """The table's path, absolute, or its name."""
        return self._named.location

    def __repr__(self) -> str:
        return f"ImageTable({self.location!r})"

    @property
    def spark(self) -> SparkSession:
        """The session.

        Raises:
            SessionError: If the table was opened without one.
        """
        if self._spark is None:
            raise SessionError(
                f"{self!r} was opened without Spark, and this needs it: ImageTable(lakelens.spark_session(), ...)"
            )
        return self._spark

    @property
    def version(self) -> int:
        """The latest version.

        Raises:
            NotADeltaTableError: If the table does not exist.
        """
        return self.snapshot().version

    @named_options
    def snapshot(self, version: Version = None) -> Snapshot:
        """Opens one version's files and properties without Spark.

        Args:
            version: Number, timestamp, pin's name, or None for the latest.
        """
        return open_snapshot(self._at(version))

    @named_options
    def labels(self, version: Version = None) -> dict[str, int]:
        """Class numbers by name, as of one version."""
        return labels_at(self.snapshot(version))

    @named_options
    def class_counts(self, version: Version = None) -> dict[str, int]:
        """Number of rows by class name as of one version: by class number, 0 for a class without rows.

        After them, by name, classes that have no number, and rows of no class as `(no class)`.
        """
        return class_counts(self.snapshot(version))

    @named_options
    def quarantine(
        self, *, batch_id: str | None = None, reason: str | None = None, limit: int | None = None
    ) -> QuarantineList:
        """The files that could not be stored, each with its reason, and how many there are of each reason.

        Args:
            batch_id: Only files that this ingest found bad.
            reason: Only files with this reason.
            limit: The most files to list.

        Raises:
            InvalidArgumentError: If `reason` is unknown.
        """
        return list_quarantine(self._quarantine_of(self._existing()), batch_id=batch_id, reason=reason, limit=limit)

    @named_options
    def pin(self, name: str, version: Version = None, *, replace: bool = False) -> int:
        """Names a version, which protects its files from `vacuum`; returns its number.

        The VACUUM of Spark and that of Databricks do not know pins.

        Args:
            name: Letters, digits, `_`, `.` and `-`, starting with a letter or `_`.
            version: Number, timestamp, another pin's name, or None for the latest.
            replace: Whether a pin of that name may move.

        Raises:
            InvalidArgumentError: If the name is unfit, or already names another version.
            VersionFilesMissingError: If files of the version are gone.
        """
        return pin_version(self._at(version), name, replace=replace)

    @named_options
    def unpin(self, name: str) -> None:
        """Removes a pin."""
        unpin(self._existing(), name)

    def tracked(self) -> list[Protection]:
        """Lists the pins and runs that protect versions from `vacuum`, each with its version and the time it began.

        Runs protect what they have trained on or scored. A run whose process ended without finishing it protects
        nothing, nor does one that MLflow has deleted; both are forgotten.
        """
        return protections(self._existing())

    @named_options
    def untrack(self, run_id: str | None = None, *, older_than: timedelta | None = None) -> int:
        """Removes the protection of versions that runs have read; returns how many there were.

        Args:
            run_id: A run.
            older_than: Instead: all runs that began longer ago and are over.

        Raises:
            VersionNotFoundError: If no version is tracked for that run.
            InvalidArgumentError: If both or neither are given, or `older_than` is not above 0.
        """
        if (run_id is None) == (older_than is None):
            raise InvalidArgumentError(f"run_id={run_id!r}, older_than={older_than!r}: give one of them")
        if older_than is not None:
            return untrack_older(self._existing(), older_than)
        return untrack(self._existing(), str(run_id))

    def pins(self) -> dict[str, int]:
        """The pins: versions by name."""
        return pins(self._existing())

    @named_options
    def history(self, limit: int | None = None) -> list[VersionInfo]:
        """The versions that the log still knows, the newest first, with rows, classes, batch and user.

        Reads log and ledger alone. Rows by class are known for commits of lakelens.

        Args:
            limit: Only the newest, this many; None lists all.
        """
        return history(self._table(), limit)

    @named_options
    def diff(self, first: int | str | datetime, second: Version = None) -> VersionDiff:
        """Counts by class what `changes` lists between two versions; None is the latest."""
        return diff(self._table(), self._zoned(first), self._zoned(second))

    @named_options
    def changes(self, first: int | str | datetime, second: Version = None) -> pa.Table:
        """Lists the rows that differ between two versions; None is the latest.

        Returns:
            The columns `path`, `label_name` and `change`, one row per kind of change: `added`, `removed`, `content`,
            `label`, `split`. `label_name` is the class in the second version, for removed rows that in the first.

        Raises:
            VersionNotFoundError: If the table has no such version.
            VersionFilesMissingError: If data files that have to be read are gone.
        """
        return changes(self._table(), self._zoned(first), self._zoned(second))

    @named_options
    def vacuum(
        self,
        retention_hours: int | None = None,
        *,
        dry_run: bool = False,
        keep_protected: bool = False,
        allow_short_retention: bool = False,
    ) -> VacuumResult:
        """Removes files that no version within the retention needs, and none of a pinned or used version.

        The VACUUM of Spark and that of Databricks know neither pins nor runs.

        Args:
            retention_hours: Age in hours from which removed files go; None takes the table's own (168 by default).
            dry_run: Only report which files would be removed.
            keep_protected: Leave the files of protected versions and remove the others, instead of refusing.
            allow_short_retention: Accept fewer hours than 168: readers and writers that are at work now may break.

        Raises:
            VersionProtectedError: If files of a pinned version, or of one that a run has used, would go.
            VersionUnreadableError: If such a version cannot be opened now, so that its files are not known.
        """
        return vacuum(
            self._table(),
            retention_hours,
            dry_run=dry_run,
            keep_protected=keep_protected,
            allow_short_retention=allow_short_retention,
        )

    def _table(self) -> Table:
        if not self._named.is_name:
            return self._named
        with failures_named(self.location):
            require_delta_table(self.spark, self.location)
            return resolved(self.spark, self._named)

    def _at(self, version: Version) -> Table:
        return self._table().at(self._zoned(version))

    def _zoned(self, version: Version) -> Version:
        """Reads a time without a zone in that of the session, if there is one."""
        named = version_of(version)
        if self._spark is None or not isinstance(named, (str, datetime)):
            return named
        return version_of(with_zone(named, lambda: zone_named(option_of(self.spark, SETTING, "UTC"))))

    def _existing(self) -> Table:
        table = self._table()
        require_entries(table)
        return table

    def _quarantine_of(self, table: Table) -> Table:
        if self._named.is_name:
            named = dataclasses.replace(table, location=quarantine_location(self.location))
            if is_delta_table(self.spark, named.location):
                return resolved(self.spark, named)
        return dataclasses.replace(table, location=quarantine_location(table.path))
