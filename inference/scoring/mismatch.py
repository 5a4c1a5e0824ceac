"""Compares the table to score with the table that a model was trained on."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress

from ...errors import ModelMismatchError, NotAnImageTableError
from ...results import some_of
from ...stores.clients import SCHEMES
from ...stores.data_files import local_form
from ...training.checkpoints.references import ModelRef
from .source import ScoredTable

logger = logging.getLogger(__name__)

_NAMED = 5


def check_model(model: ModelRef, source: ScoredTable, strict: bool) -> None:
    """Compares a model with the table to score; see `check_fit`."""
    labels: dict[str, int] = {}
    with suppress(NotAnImageTableError):  # a damaged property of the table has no names to compare
        labels = source.labels()
    trained_on = model.metadata.get("table")
    # Training resized the images of the model's own table, so their size does not matter.
    is_own = trained_on == source.location
    check_fit(
        model=model.uri,
        class_names=model.class_names,
        model_size=model.input_shape[:2],
        trained_on=None if trained_on is None else str(trained_on),
        table=source.location,
        labels=labels,
        table_size=None if is_own else source.image_size(),
        strict=strict,
    )


def check_fit(
    *,
    model: str,
    class_names: Sequence[str] | None,
    model_size: tuple[int, int],
    trained_on: str | None,
    table: str,
    labels: Mapping[str, int],
    table_size: tuple[int, int] | None,
    strict: bool,
) -> None:
    """Compares a model with the table to score, and reports all differences at once."""
    # No difference: a class that only the model has, as older versions have fewer; in the model's own table, a renamed
    # class and another size. Another table than the training's, normal in production, is reported only if something
    # else differs or class names are not known.
    is_own = is_same_table(trained_on, table)
    found = [] if class_names is None else _class_differences(class_names, labels, is_own=is_own)
    if table_size is not None and table_size != model_size and not is_own:
        found.append(
            f"the model takes {_size(model_size)} pixels, the table's images have {_size(table_size)} and are resized"
        )
    is_known = class_names is not None and bool(labels)
    if trained_on is not None and not is_own and (found or not is_known):
        found.append(f"the model was trained on another table, {trained_on}")
    if not found:
        return
    warning = f"model {model} may not fit {table}: {'; '.join(found)}"
    if strict:
        raise ModelMismatchError(
            f"{warning}. Score with a model that was trained for this table, or without strict=True (--strict)"
        )
    logger.warning("%s. It is scored anyway; strict=True (--strict) refuses", warning)


def other_names(in_table: Mapping[int, str], to_model: Mapping[int, str], *, is_own: bool) -> list[int]:
    """Lists the numbers that stand for different classes in a table and in a model."""
    # Names decide, but in the model's own table numbers are never reused: another name is that of a renamed class,
    # unless it has moved to another number, as in a table that was created again.
    named = set(in_table.values())
    return [
        number
        for number in sorted(in_table.keys() & to_model.keys())
        if in_table[number] != to_model[number] and not (is_own and to_model[number] not in named)
    ]


def is_same_table(trained_on: str | None, table: str) -> bool:
    """Returns whether a model was trained on a table under any name: `s3` and `s3a`, `dbfs:/x` and `/dbfs/x`."""
    return trained_on is not None and _one_form(trained_on) == _one_form(table)


def _one_form(location: str) -> str:
    scheme, separator, rest = (local_form(location) or location).rstrip("/").partition("://")
    return f"{SCHEMES[scheme.lower()]}://{rest}" if scheme.lower() in SCHEMES else scheme + separator + rest


def _class_differences(class_names: Sequence[str], labels: Mapping[str, int], *, is_own: bool) -> list[str]:
    by_number = dict(enumerate(class_names))
    in_table = {number: name for name, number in labels.items()}
    other = [
        f"{number} is {by_number[number]!r} in the model and {in_table[number]!r} in the table"
        for number in other_names(in_table, by_number, is_own=is_own)
    ]
    unknown = [f"{name!r} ({number})" for name, number in labels.items() if number not in by_number]
    differences = []
    if other:
        differences.append(f"class names differ: {some_of(other, _NAMED)}")
    if unknown:
        differences.append(f"the model does not know the table's class {some_of(unknown, _NAMED)}")
    return differences


def _size(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"
