"""The evaluation side of a task: the counts of a model's answers, and the report made from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...errors import InvalidArgumentError, PredictionsSchemaError
from ...results import tail_of
from ...training.checkpoints.references import ModelRef
from ..scoring.mismatch import is_same_table
from ..scoring.source import ScoredTable
from .metrics import one_numbering
from .result import EvaluationResult, TaskMetrics

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SLICE = "slice_{}"


@dataclass(frozen=True)
class Answered:
    """One model with its answers on the rows of a table version."""

    model: ModelRef  # The model
    rows: DataFrame  # Its answers, as `Evaluator.kept` leaves them


class Evaluator(ABC):
    """The evaluation of one task on one table version."""

    scores: ClassVar[Sequence[str]]  # The metrics that are a single number, by which models can be compared
    less_is_better: ClassVar[frozenset[str]] = frozenset()  # Those of them that are better when smaller

    def __init__(self, source: ScoredTable, slices: Sequence[str]) -> None:
        self.source = source
        self.slices = tuple(slices)

    def columns(self) -> dict[str, tuple[str, Column]]:
        """Gives the table's columns next to the answers: by name their SQL type and what they are made of."""
        from pyspark.sql import functions

        require_slices(self.source.name, self.source.snapshot.schema, self.slices)
        return {
            SLICE.format(i): ("STRING", functions.col(f"`{name}`").cast("string")) for i, name in enumerate(self.slices)
        }

    @abstractmethod
    def kept(self, rows: DataFrame) -> DataFrame:
        """Reduces answers to what the report needs of them."""

    @abstractmethod
    def report(self, after: Answered, before: Answered | None) -> tuple[EvaluationResult, dict[str, bytes]]:
        """Evaluates a model, also against an earlier one."""

    def numbering(self, model: ModelRef, true: Mapping[int, str], predicted: Mapping[int, str]) -> dict[int, str]:
        """Joins the names of the table's and the model's classes; see `one_numbering`."""
        try:
            is_own = is_same_table(model.metadata.get("table"), self.source.location)
            return one_numbering(true, predicted, is_own=is_own)
        except PredictionsSchemaError as error:
            raise PredictionsSchemaError(f"{model.uri} on {self.source.name}: {error}") from None

    def result(self, model: ModelRef, evaluation: TaskMetrics) -> EvaluationResult:
        """Starts the result of a model."""
        trained_on = None
        if model.metadata.get("table") is not None:
            trained_on = f"{model.metadata['table']}@{model.metadata.get('version')}"
        return EvaluationResult(
            model=model.uri,
            digest=model.digest,
            run_id=model.run_id,
            trained_on=trained_on,
            table=self.source.location,
            version=self.source.version,
            split=self.source.split,
            evaluation=evaluation,
        )


def require_slices(table: str, columns: Collection[str], slices: Sequence[str]) -> None:
    """Checks that a table has the slice columns."""
    for name in slices:
        if name not in columns:
            raise InvalidArgumentError(f"slice {name!r}: {table} has no such column; its columns: {', '.join(columns)}")


def name_of(model: ModelRef) -> str:
    """Names a model by its alias, experiment or run, or by the end of its checkpoint's path."""
    scheme, _, name = model.uri.partition(":")
    name = name.lstrip("/").partition("?")[0]
    if scheme == "models" or (scheme == "experiment" and not name.isdigit()):
        return name
    return model.run_name or (name[:8] if scheme in ("runs", "search", "experiment") else tail_of(model.uri))


def names_of(before: ModelRef, after: ModelRef) -> tuple[str, str]:
    """Names two models by the versions that they were trained on if these differ, else by their names or URIs."""
    versions = [model.metadata.get("version") for model in (before, after)]
    if None not in versions and versions[0] != versions[1]:
        return f"version {versions[0]}", f"version {versions[1]}"
    names = name_of(before), name_of(after)
    return names if names[0] != names[1] else (before.uri, after.uri)
