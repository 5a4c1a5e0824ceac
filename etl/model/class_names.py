"""The name of a class as every layout reads it; pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping

from ...errors import InvalidArgumentError

# Texts of a hostile source are cut where they would be stored for every image.
MAX_NAME_LENGTH = 500
# Persian words and composed emoji need them.
_JOINERS = "\u200c\u200d"
# Control and format characters, and halves of surrogate pairs.
_REFUSED = ("Cc", "Cf", "Cs")


def class_name(text: str) -> str | None:
    """Reads the name of a class: composed (NFC), each run of blanks one space, none at the ends; None if none is left.

    Raises InvalidArgumentError for invisible characters other than joiners, and for a name that is too long.
    """
    name = " ".join(unicodedata.normalize("NFC", text).split())
    if any(unicodedata.category(character) in _REFUSED and character not in _JOINERS for character in name):
        escaped = name[:80].encode("unicode_escape").decode("ascii")
        raise InvalidArgumentError(f"the class name '{escaped}' has a character that cannot be seen; remove it")
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidArgumentError(
            f"the class name {name[:80]!r}... has {len(name)} characters; at most {MAX_NAME_LENGTH} are stored"
        )
    return name or None


def spelled(name: str) -> str:
    """Spells a class as every source does; a name that no source can have stays as it is."""
    try:
        return class_name(name) or name
    except InvalidArgumentError:
        return name


def names_now(labels: Iterable[str], aliases: Mapping[str, str]) -> dict[str, str]:
    """Returns a table's name of each class that a source names otherwise: renamed ones, and other spellings.

    The classes of an older table keep their spelling, which sources no longer have.
    """
    names = {**aliases, **{name: name for name in labels}}
    return {spelled(name): now for name, now in names.items() if spelled(name) not in names} | dict(aliases)
