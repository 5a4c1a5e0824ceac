"""What a caller may ask of an ingest by keyword. `ImageTable.ingest` describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from ...errors import InvalidArgumentError
from ..images.recipe import Limits
from ..sources.sources import Source
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
    seed: int | None


class IngestOptions(RecipeOptions, total=False):
    """Keywords of `ImageTable.ingest`, `ingest_stream` and `preview`."""

    limits: Limits | None
    removed: str
    verify: str
    classes: Sequence[str] | None
    annotations: str | None
    images: str | None
    batch_id: str | None
    near_duplicates: bool
    allow_loss: bool


def request_of(source: str | Path | DataFrame, layout: str, options: Mapping[str, Any]) -> IngestRequest:
    """Makes the request that keywords ask for.

    Raises:
        InvalidArgumentError: If there is no such keyword.
    """
    known = IngestOptions.__annotations__
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise InvalidArgumentError(f"{unknown[0]}={options[unknown[0]]!r}: an ingest takes {', '.join(sorted(known))}")
    asked = dict(options)
    place = {name: asked.pop(name, None) for name in ("annotations", "images")}
    recipe = {name: asked.pop(name) for name in RecipeOptions.__annotations__ if name in asked}
    limits = asked.pop("limits", None) or Limits()
    return IngestRequest(Source(source, layout, **place), recipe, limits, **asked)
