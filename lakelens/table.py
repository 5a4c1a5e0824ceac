"""A Delta table as a caller names it: where it is, how its store is reached, and which version is meant."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time
from pathlib import Path
from typing import TypeAlias

from .errors import InvalidArgumentError, NotADeltaTableError
from .locations import absolute, has_scheme, is_table_name, locate, table_and_version

# A number, a time, the name of a pin, or None for the latest.
Version: TypeAlias = int | str | datetime | None

_NUMBER = re.compile(r"[0-9]+")


@dataclass(frozen=True)
class Table:
    """Names a Delta table; nothing is opened until `snapshot`. Public functions make it by `Table.of`."""

    location: str  # Absolute path without a slash at its end, URI, or name in the catalog
    # Access to an object store, under delta-rs' names. They may hold secrets: no message shows them
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    version: Version = None  # The version that is meant, as `version_of` returns it

    @classmethod
    def of(
        cls, table: str | Path | Table, version: object = None, storage_options: Mapping[str, str] | None = None
    ) -> Table:
        """Reads the arguments by which a caller names a table."""
        wanted = version_of(version)
        if isinstance(table, Table):
            options = table.storage_options if storage_options is None else dict(storage_options)
            return replace(table, version=table.version if wanted is None else wanted, storage_options=options)
        location, named = table_and_version(table)
        if named is not None and version is not None and version_of(named) != wanted:
            raise InvalidArgumentError(f"{str(table)!r} names a version, and version={version!r} does too; give one")
        place = absolute(table if named is None else location)
        return cls(place.rstrip("/") or "/", dict(storage_options or {}), version_of(named) if named else wanted)

    @classmethod
    def unversioned(
        cls, table: str | Path | Table, call: str, storage_options: Mapping[str, str] | None = None
    ) -> Table:
        """Reads a table where no version can be chosen by its name."""
        named = cls.of(table, None, storage_options)
        if named.version is not None:
            raise InvalidArgumentError(
                f"{call} takes a table with all its versions, and {str(table)!r} names version {named.version}; give "
                f"{named.location!r}, and the version separately: version=..."
            )
        return named

    def __str__(self) -> str:
        return self.location if self.version is None else f"{self.location}@{self.version}"

    @property
    def is_name(self) -> bool:
        """Whether it is a name in the catalog, which only Spark resolves."""
        return is_table_name(self.location)

    @property
    def path(self) -> str:
        """The absolute path or URI."""
        if self.is_name:
            raise NotADeltaTableError(
                f"{self.location} is a catalog name; give the table's path: the location that "
                f"DESCRIBE DETAIL {self.location} shows"
            )
        return self.location

    @property
    def uri(self) -> str:
        """The absolute URI: `file:///...` for a path."""
        return self.path if has_scheme(self.path) else Path(self.path).as_uri()

    def at(self, version: object) -> Table:
        """Names another version of the table; None is the latest."""
        return replace(self, version=version_of(version))

    def file(self, path: str) -> str:
        """Returns the absolute path or URI of a file by its path in the table's log."""
        return locate(self.path, path)


def version_of(version: object) -> Version:
    """Reads a version: a number, a time, None for the latest, or a text that is a pin's name or a time."""
    if version is None or isinstance(version, datetime):
        return version
    if isinstance(version, date):
        return datetime.combine(version, time())
    if isinstance(version, str):
        text = version.strip()
        if text.lower() == "latest":
            return None
        return int(text) if _NUMBER.fullmatch(text) else text
    try:
        if not isinstance(version, bool):
            return operator.index(version)  # type: ignore[arg-type]  # anything else raises TypeError
    except TypeError:
        pass
    raise InvalidArgumentError(
        f"version={version!r}: give a number, a time (datetime, date or ISO 8601 text), a pin's name or 'latest'"
    )
