"""Names in data files, matched with the table's as Spark matches them: in upper or lower case."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import DataFileError


def spelled_in_file(wanted: Iterable[str], names: Iterable[str], location: str) -> dict[str, str]:
    """Finds names among those of a data file; gives the file's spelling of each that it has."""
    spellings: dict[str, list[str]] = {}
    for name in names:
        spellings.setdefault(name.lower(), []).append(name)
    found = {name: spellings[name.lower()] for name in wanted if name.lower() in spellings}
    for name, several in found.items():
        if len(several) > 1:
            raise DataFileError(
                f"{location} has the names {' and '.join(map(repr, several))} for column {name!r}; Spark refuses this "
                "file too. Write it again with one of them"
            )
    return {name: one for name, (one,) in found.items()}
