"""Names of metrics, parameters, tags, models and aliases as MLflow takes them. Pure.

MLflow refuses `recall@0.5`. Such a name is written as the nearest one that it takes, `recall_at_0.5`. A tag of the run
keeps which name stands for which.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgumentError

if TYPE_CHECKING:
    from mlflow.entities import Run

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


# Names as the training has them, of those that the run has in another form: a JSON object.
NAMES_TAG = "lakelens.names"


class RunNames:
    """The names that one run has, each for one name of the training."""

    def __init__(self, taken: Iterable[str] = (), changed: Mapping[str, str] | None = None) -> None:
        # Its names by those of the training, of those that differ
        self.changed = dict(changed or {})
        self._owner = {name: name for name in taken} | {own: name for name, own in self.changed.items()}

    def of(self, names: Iterable[str]) -> dict[str, str]:
        """Gives the name in the run of each name; two names that become one are numbered."""
        wanted = list(names)
        # Names that MLflow accepts precede the others: these stay as they are.
        for name in sorted(wanted, key=lambda name: nearest_name(name) != name):
            if name not in self.changed and self._owner.get(name) != name:
                own = self._free(nearest_name(name), name)
                self._owner[own] = name
                if own != name:
                    self.changed[name] = own
        return {name: self.changed.get(name, name) for name in wanted}

    def _free(self, wanted: str, name: str) -> str:
        from mlflow.utils.validation import MAX_ENTITY_KEY_LENGTH

        own, number = wanted, 1
        while self._owner.get(own, name) != name:
            number += 1
            end = f"_{number}"
            own = wanted[: MAX_ENTITY_KEY_LENGTH - len(end)] + end
        return own


def nearest_name(name: str) -> str:
    """Gives a name that MLflow takes: the same one if MLflow takes it."""
    from mlflow.utils.validation import MAX_ENTITY_KEY_LENGTH, path_not_unique, validate_param_and_metric_name

    own = "".join(
        character if validate_param_and_metric_name(character) and character != "\n" else "_"
        for character in name.replace("@", "_at_")
    )
    if not own or path_not_unique(own):
        parts = [part.replace("..", "_") if set(part) == {"."} else part for part in own.split("/")]
        own = "/".join(part for part in parts if part not in ("", ".")) or "_"
    if len(own) > MAX_ENTITY_KEY_LENGTH:
        own = own[:MAX_ENTITY_KEY_LENGTH].rstrip("/")
    return own


def changed_names(tags: Mapping[str, str]) -> dict[str, str]:
    """Reads a run's tags: its names by those of the training, of those that differ."""
    try:
        found = json.loads(tags.get(NAMES_TAG, "{}"))
    except ValueError:
        return {}
    return {str(name): str(own) for name, own in found.items()} if isinstance(found, dict) else {}


def names_of(run: Run) -> RunNames:
    """Reads the names that a run has."""
    return RunNames([*run.data.metrics, *run.data.params], changed_names(run.data.tags))


def metric_of(run: Run, name: str) -> Any:
    """Gives the last value of a metric by the training's name; None if the run has none."""
    return run.data.metrics.get(changed_names(run.data.tags).get(name, name))


def names_text(changed: Mapping[str, str], limit: int) -> str:
    """Writes the tag; names beyond the limit of a tag's value are left out, the last ones first."""
    kept = dict(changed)
    while len(text := json.dumps(kept, ensure_ascii=False)) > limit:
        kept.popitem()
    return text
