"""Restores an old version: a new commit with exactly its rows, through Delta's RESTORE.

RESTORE also brings back the old table properties, and with them fewer class numbers. Numbers only ever grow: a model
that was trained after the old version would otherwise be read wrongly once the next new class takes a number again.
Where classes came after the old version, a second commit therefore writes the numbers back. Should the process die
between the two, the note of the first tells the next ingest all numbers.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

from ...errors import (
    DataFileError,
    NotADeltaTableError,
    NotAnImageTableError,
    TableConflictError,
    VersionFilesMissingError,
)
from ...ledger.uses import reading
from ...results import ReadableResult
from ...table import Table
from ..commit.known_classes import labels_in_log
from ..commit.transaction import noted, set_properties, user_name
from ..images.recipe import Recipe
from ..log.data_files import require_files
from ..log.log_walk import walk_log
from ..log.notes import RESTORE, note_of, write_note
from ..log.snapshot import Snapshot, open_snapshot
from ..model.aliases import ALIASES_PROPERTY, aliases_at, aliases_of, aliases_property, names_at
from ..model.class_numbers import merge_older
from ..model.labels import LABELS_PROPERTY, labels_of, labels_property
from ..spark.catalog import is_delta_table, path_of, sql_name
from ..spark.conflicts import conflicts_named
from ..spark.failures import naming_failures
from ..spark.writing_session import writing_session
from .changes import VersionDiff, diff
from .classes import class_counts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ATTEMPTS = 5
_RECENT = 20


@dataclass(frozen=True, repr=False)
class RestoreResult(ReadableResult):
    """The result of a restore.

    Attributes:
        version: The version that holds the restored rows: the table's latest.
        restored: Number of the version whose rows they are.
        added: Rows that came back, by class; all rows where the version before could not be compared.
        removed: Rows that went, by class.
        changed: Rows that have their old content or class again, by that class.
        user: Who restored.
        committed: Whether a new version was made; not when the table's rows were those already.
    """

    version: int
    restored: int
    added: dict[str, int]
    removed: dict[str, int]
    changed: dict[str, int]
    user: str
    committed: bool


@naming_failures
def restore(
    spark: SparkSession,
    location: str,
    version: int | str | datetime,
    storage_options: Mapping[str, str] | None = None,
) -> RestoreResult:
    """Makes a new version whose rows are exactly an old one's; the versions between stay in the history.

    The next ingest compares its source with the restored rows: it takes again what the restore has removed.

    Args:
        spark: The session.
        location: Path, URI or name of the table.
        version: Number, time or pin of the version to bring back.
        storage_options: Access to an object store.

    Raises:
        NotADeltaTableError: If there is no table.
        NotAnImageTableError: If lakelens did not create it.
        VersionNotFoundError: If it has no such version.
        VersionFilesMissingError: If data files of the version are gone; names them, and the versions that are whole.
        TableConflictError: If other writers kept committing first, or a VACUUM was at work for ten minutes.
    """
    session = writing_session(spark)
    if not is_delta_table(session, location):
        raise NotADeltaTableError(f"{location} holds no Delta table; give the table whose version is to be restored")
    return _Restore(session, location, path_of(session, location), storage_options).to(version)


def difference(path: str, before: int, after: int, storage_options: Mapping[str, str] | None = None) -> VersionDiff:
    """Compares the version before a restore with the one after it.

    A table may be restored because files of its latest version are gone, or because it was overwritten with other
    columns. There is nothing to compare with then, and every restored row counts as added.
    """
    try:
        return diff(Table.of(path, None, storage_options), before, after)
    except (VersionFilesMissingError, DataFileError, NotAnImageTableError):
        restored = open_snapshot(path, after, storage_options)
        return VersionDiff(before, after, class_counts(restored), {}, {})


def _labels_of(configuration: Mapping[str, str]) -> dict[str, int]:
    """The class numbers; none where the property is broken, which a restore is the way out of."""
    try:
        return labels_of(configuration)
    except NotAnImageTableError:
        return {}


@dataclass(frozen=True)
class _Restore:
    """One restore of the table at `location`, whose files lie at `path`."""

    spark: SparkSession
    location: str
    path: str
    storage_options: Mapping[str, str] | None
    user: str = field(default_factory=user_name)

    def to(self, version: int | str | datetime) -> RestoreResult:
        """Makes the commits that `restore` promises."""
        target, latest = self._open(version), self._open(None)
        Recipe.of({**target.configuration, **latest.configuration}, self.location)
        today = labels_in_log(latest, _labels_of(latest.configuration), self.storage_options)
        both_aliases = aliases_of(latest.configuration), aliases_of(target.configuration)
        labels = names_at(today, _labels_of(target.configuration), *both_aliases)
        aliases = aliases_at(labels, today, *both_aliases)
        result = RestoreResult(latest.version, target.version, {}, {}, {}, self.user, committed=False)
        with reading(target.table, target.version, f"restore-{uuid.uuid4().hex}"):
            require_files(target, self.storage_options)
            is_latest = set(target.files.paths) == set(latest.files.paths)
            made = latest.version if is_latest else self._bring_back(target, labels)
        if not is_latest:
            found = difference(self.path, made - 1, made, self.storage_options)
            result = RestoreResult(
                made, target.version, found.added, found.removed, found.changed, self.user, committed=True
            )
        configuration = self._open(None).configuration
        now = _labels_of(configuration)
        grown = merge_older([now, labels])  # the version's own numbers are those of its rows
        properties = {LABELS_PROPERTY: labels_property(grown)} if grown != now else {}
        if aliases != aliases_of(configuration):
            properties[ALIASES_PROPERTY] = aliases_property(aliases)
        if properties:
            result = replace(result, version=self._write_back(properties, grown, target), committed=True)
        return result

    def _open(self, version: int | str | datetime | None) -> Snapshot:
        return open_snapshot(self.path, version, self.storage_options)

    def _bring_back(self, target: Snapshot, labels: Mapping[str, int]) -> int:
        """Runs RESTORE; returns the number of its commit."""
        conflict: TableConflictError | None = None
        statement = f"RESTORE TABLE {sql_name(self.location)} TO VERSION AS OF {target.version}"
        for _ in range(_ATTEMPTS):
            try:
                with self._noted(target, labels) as mark, conflicts_named(f"{self.location}@{target.version}"):
                    self.spark.sql(statement).collect()
            except TableConflictError as error:
                conflict = error
            else:
                return self._commit_of(mark)
        raise TableConflictError(
            f"{self.location}: gave up after {_ATTEMPTS} attempts to restore version {target.version}, because other "
            f"writers kept committing first; restore again when they are done. Last: {conflict}"
        ) from conflict

    def _write_back(self, properties: Mapping[str, str], labels: Mapping[str, int], target: Snapshot) -> int:
        """Writes back the numbers and aliases that RESTORE has taken away; returns the number of the commit."""
        with self._noted(target, labels) as mark:
            set_properties(self.spark, self.location, properties)
        return self._commit_of(mark)

    @contextlib.contextmanager
    def _noted(self, target: Snapshot, labels: Mapping[str, int]) -> Iterator[str]:
        """Lets commits carry a note of this restore; gives the mark by which `_commit_of` finds it."""
        mark = uuid.uuid4().hex
        counts = class_counts(target)
        others = {"restored": target.version, "user": self.user, "id": mark}
        with noted(self.spark, write_note(RESTORE, labels, counts, **others)):
            yield mark

    def _commit_of(self, mark: str) -> int:
        for state in walk_log(self.path, _RECENT, self.storage_options):
            if note_of(state.commit.get("userMetadata")).get("id") == mark:
                return state.version
        raise TableConflictError(
            f"{self.location}: the commit of a restore is not among the last {_RECENT}; look at the history"
        )
