"""The keywords of an ingest. `ImageTable.ingest` documents them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from ...errors import InvalidArgumentError
from ...job_keys import Job
from ...options import check_names
from ..images.recipe import Limits, Recipe
from ..sources.source import Source
from .results import IngestRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class RecipeOptions(TypedDict, total=False):
    """Fields of `Recipe`."""

    size: int | None
    resize: str | None
    resample: str | None
    store: str | None
    quality: int | None
    subsampling: str | None
    splits: Mapping[str, float] | None
    split_seed: int | None
    boxes_drawn_on: str | None
    depth: str | Sequence[float] | None
    keep_folder_names: bool | None


class IngestOptions(RecipeOptions, total=False):
    """Keywords of `ImageTable.ingest`, `ingest_stream` and `preview`."""

    recipe: Recipe | None
    limits: Limits | None
    delete_missing: bool
    verify: str
    classes: Sequence[str] | None
    annotations: str | None
    images: str | None
    batch_id: str | None
    near_duplicates: bool
    allow_loss: bool
    retry_quarantine: bool
    drop_bad_boxes: bool
    job: str | Job | None


def request_of(
    source: str | Path | DataFrame, layout: str, options: Mapping[str, Any], call: str = "ingest", *own: str
) -> IngestRequest:
    """Makes the request that keywords ask for."""
    check_names(call, options, ("source", "layout", *own, *IngestOptions.__annotations__))
    asked = dict(options)
    place = {name: asked.pop(name, None) for name in ("annotations", "images")}
    changes = _fields_of("recipe", asked.pop("recipe", None), Recipe)
    changes |= {name: value for name in RecipeOptions.__annotations__ if (value := asked.pop(name, None)) is not None}
    limits = Limits(**_fields_of("limits", asked.pop("limits", None), Limits))
    return IngestRequest(Source(source, layout, **place), changes, limits, **asked)


def _fields_of(name: str, value: Any, kind: type[Recipe] | type[Limits]) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, kind):
        raise InvalidArgumentError(f"{name}={value!r} is no {kind.__name__}: give lakelens.{kind.__name__}(...)")
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(kind)}
