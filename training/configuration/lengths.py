"""Lengths of training, in one of three units."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Unit = Literal["epochs", "batches", "records"]


class Length(BaseModel):
    """How long to train: exactly one of the units, as in `{epochs: 9}`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    epochs: int | None = Field(None, ge=1, description="Passes through the training split.")
    batches: int | None = Field(None, ge=1, description="Steps of `global_batch_size` images over all ranks.")
    records: int | None = Field(None, ge=1, description="Images over all ranks.")

    @model_validator(mode="before")
    @classmethod
    def _is_no_bare_number(cls, given: Any) -> Any:
        if isinstance(given, int) and not isinstance(given, bool):
            raise ValueError(
                f"give a length its unit: {{batches: {given}}}, {{epochs: {given}}} or {{records: {given}}}"
            )
        return given

    @model_validator(mode="after")
    def _has_one_unit(self) -> Length:
        given = [name for name in ("epochs", "batches", "records") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of epochs, batches and records; {' and '.join(given) or 'none'} given")
        return self

    @property
    def unit(self) -> Unit:
        """The unit."""
        return "epochs" if self.epochs is not None else "batches" if self.batches is not None else "records"

    @property
    def amount(self) -> int:
        """The number of units."""
        return int(getattr(self, self.unit))

    def steps(self, *, global_batch_size: int, steps_per_epoch: int) -> int:
        """Converts the length to training steps, rounded up."""
        if self.epochs is not None:
            return self.epochs * steps_per_epoch
        return self.batches if self.batches is not None else math.ceil((self.records or 0) / global_batch_size)

    def __str__(self) -> str:
        return f"{self.amount} {self.unit}"
