"""The keywords that `score`, `evaluate` and `promote` share; `score` documents them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from ...options import whole_number
from ..model.predictor import DEFAULT_BATCH_BYTES
from .source import SourceColumns


class RowOptions(TypedDict, total=False):
    """What runs a model, and which columns of a table it reads."""

    engine: str | None
    path_column: str
    image_column: str
    label_column: str
    key: str


class ModelOptions(RowOptions, total=False):
    """The same, and how model and table are reached."""

    tracking_uri: str | None
    batch_bytes: int
    custom_objects: Mapping[str, Any] | None
    storage_options: Mapping[str, str] | None


@dataclass(frozen=True)
class ModelSettings:
    """`ModelOptions` with their defaults."""

    engine: str | None = None
    path_column: str = SourceColumns.path
    image_column: str = SourceColumns.image
    label_column: str = SourceColumns.label
    key: str = SourceColumns.key
    tracking_uri: str | None = None
    batch_bytes: int = DEFAULT_BATCH_BYTES
    custom_objects: Mapping[str, Any] | None = None
    storage_options: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_bytes", whole_number("batch_bytes", self.batch_bytes, least=1))

    @property
    def columns(self) -> SourceColumns:
        """The columns of the image table."""
        return SourceColumns(self.path_column, self.image_column, self.label_column, self.key)
