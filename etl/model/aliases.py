"""Other names of renamed classes: a table property, so that later ingests store the files of either name; pure."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ...errors import NotAnImageTableError

ALIASES_PROPERTY = "lakelens.aliases"


def aliases_of(configuration: Mapping[str, str]) -> dict[str, str]:
    """Reads class names by the old names of these classes from a table's properties.

    Raises:
        NotAnImageTableError: If the property is not a JSON object of texts.
    """
    text = configuration.get(ALIASES_PROPERTY)
    if text is None:
        return {}
    try:
        aliases = json.loads(text)
        return {str(old): str(name) for old, name in aliases.items()}
    except (ValueError, AttributeError) as error:
        raise NotAnImageTableError(
            f"table property {ALIASES_PROPERTY} = {text[:200]!r} is not a JSON object of class names ({error}); "
            "set it again as lakelens wrote it, or unset it"
        ) from error


def aliases_property(aliases: Mapping[str, str]) -> str:
    """Writes the value of the table property."""
    return json.dumps(dict(aliases), ensure_ascii=False)


def add_alias(aliases: Mapping[str, str], old: str, new: str) -> dict[str, str]:
    """Adds that `old` is called `new`; older names of `old` lead to `new` too, and `new` is no alias any more."""
    added = {other: new if name == old else name for other, name in aliases.items()} | {old: new}
    added.pop(new, None)
    return added


def aliases_at(
    named: Mapping[str, int], labels: Mapping[str, int], aliases: Mapping[str, str], aliases_then: Mapping[str, str]
) -> dict[str, str]:
    """Returns the aliases of a restored version: every name that a number ever had points to its restored name.

    Args:
        named: Numbers by the names of the restored version.
        labels: Numbers by the names of today.
        aliases: Aliases of today.
        aliases_then: Aliases of the restored version.
    """
    names = {number: name for name, number in named.items()}
    numbers = {old: named[name] for old, name in aliases_then.items() if name in named}
    numbers |= {old: labels[name] for old, name in aliases.items() if name in labels} | dict(labels)
    return {old: names[number] for old, number in numbers.items() if old not in named and number in names}


def names_at(
    labels: Mapping[str, int], stated: Mapping[str, int], aliases: Mapping[str, str], aliases_then: Mapping[str, str]
) -> dict[str, int]:
    """Returns class numbers under the names that a restored version has for the classes that were renamed.

    Args:
        labels: Numbers by the names of today.
        stated: Numbers by the names of the restored version.
        aliases: Aliases of today.
        aliases_then: Aliases of the restored version.
    """
    names = {number: name for name, number in stated.items()}

    def name_of(today: str, number: int) -> str:
        then = names.get(number, today)
        return then if today in (aliases.get(then), then) or aliases_then.get(today) == then else today

    return {name_of(name, number): number for name, number in labels.items()}
