"""MLflow's rules for names and aliases of registered models, and values in its filters. Pure."""

from __future__ import annotations

import re

from ..errors import InvalidArgumentError

# MLflow allows 255; the tag of a promotion has 250, of which its prefix takes a part.
_LONGEST_ALIAS = 200
_ALIAS = re.compile(rf"(?!v\d+\Z)[\w-]{{1,{_LONGEST_ALIAS}}}", re.IGNORECASE)


def require_model_name(name: str) -> None:
    """Checks the name of a registered model by MLflow's rules."""
    if not name.strip() or name == "." or name.startswith("..") or any(character in name for character in "/:"):
        raise InvalidArgumentError(
            f"{name!r} cannot name a registered model: give a name without '/' and ':' that does not begin with '..'"
        )


def require_alias(alias: str) -> None:
    """Checks an alias by MLflow's rules."""
    if not _ALIAS.fullmatch(alias) or alias.lower() == "latest":
        raise InvalidArgumentError(
            f"alias {alias!r}: give 1 to {_LONGEST_ALIAS} letters, digits, '_' or '-', but not 'latest' or a version "
            "such as 'v1'"
        )


def quoted(value: str) -> str:
    """Writes a value for one of MLflow's filters, which have no escapes."""
    for mark in "'\"":
        if mark not in value:
            return f"{mark}{value}{mark}"
    raise InvalidArgumentError(f"{value!r} has single and double quotes, which MLflow cannot search for; rename it")
