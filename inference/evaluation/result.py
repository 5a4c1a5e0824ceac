"""The result of an evaluation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, TypeVar

from ...etl.images.stored_image import StoredImage
from ...results import ReadableResult


class TaskMetrics(ReadableResult, ABC):
    """The metrics of a model."""

    rows: int  # Labelled rows
    errors: int  # How many of those have an error instead of a prediction
    classes: list[Any]  # A dataclass of metrics per class

    @property
    @abstractmethod
    def scores(self) -> dict[str, float]:
        """The metrics that are a single number and have a value."""


class TaskComparison(ReadableResult):
    """The comparison of two models: rows that are better or worse with the second. Each task has a dataclass of it."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    fixed: int  # Rows that are better
    broken: int  # Rows that are worse
    p_value: float  # The probability of a split at least this uneven if both models are equally good
    classes: list[Any]  # A dataclass of changes per class
    most_improved_class: str | None  # The class that has gained most; None if no class has gained
    _changed: ClassVar[str]

    @property
    def scores(self) -> dict[str, float]:
        """The numbers that a run keeps."""
        return {"p_value": self.p_value, "fixed": self.fixed, "broken": self.broken}

    @property
    def sentences(self) -> list[str]:
        """The comparison in a line or two."""
        gained = [f"the class that gained most: {self.most_improved_class}"] if self.most_improved_class else []
        return [self._changed.format(self), *gained]


@dataclass(frozen=True)
class Shown:
    """One image with its true class and each model's answer."""

    path: str  # The row's path
    truth: str  # Name of the true class
    # For each model its answer and the probability of it; None for an error
    answers: tuple[tuple[str, float | None], ...]
    image: StoredImage | None = None  # The stored image, once fetched


Boxes = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class ShownBoxes:
    """One image with its objects and each model's detections."""

    path: str  # The row's path
    truths: Boxes  # The objects
    detections: tuple[Boxes, ...]  # The detections of each model
    about: tuple[str, ...]  # What is wrong in it, for each model
    image: StoredImage | None = None  # The stored image, once fetched


AnyShown = TypeVar("AnyShown", Shown, ShownBoxes)


@dataclass(frozen=True, repr=False)
class EvaluationResult(ReadableResult):
    """One model on one table version, and against another model.

    Attributes:
        model: The model as the caller named it.
        digest: Digest of its checkpoint.
        run_id: The run that trained it; None if not known.
        trained_on: `table@version` that it was trained on; None if not known.
        table: Location of the image table.
        version: The version that was evaluated.
        split: The split; None for all rows.
        evaluation: The metrics.
        slices: For each slice column the metrics by its values.
        compared: The model that it is compared with, as the caller named it.
        other: The metrics of that model.
        comparison: The differences; None without another model.
        page: Path of the HTML page; None without an output folder.
        artifacts: Where the run keeps page and PNG files, as `runs:/<id>/...`; None if it does not.
    """

    model: str
    digest: str
    run_id: str | None
    trained_on: str | None
    table: str
    version: int
    split: str | None
    evaluation: TaskMetrics
    slices: dict[str, Mapping[str, TaskMetrics]] = field(default_factory=dict)
    compared: str | None = None
    other: TaskMetrics | None = None
    comparison: TaskComparison | None = None
    page: str | None = None
    artifacts: str | None = None

    def as_facts(self) -> dict[str, Any]:
        """Writes the result as plain values, for JSON."""
        asked = ("model", "digest", "run_id", "trained_on", "table", "version", "split")
        facts: dict[str, Any] = {name: getattr(self, name) for name in (*asked, "page", "artifacts")}
        facts |= _numbers(self.evaluation)
        facts["classes"] = [asdict(one) for one in self.evaluation.classes]
        if self.slices:
            facts["slices"] = {
                column: {value: _numbers(one) for value, one in values.items()}
                for column, values in self.slices.items()
            }
        if self.comparison is not None and self.other is not None:
            facts["compared"] = {"model": self.compared, **_numbers(self.other)}
            facts["comparison"] = asdict(self.comparison)
        return facts


def _numbers(evaluation: TaskMetrics) -> dict[str, Any]:
    return {"rows": evaluation.rows, "errors": evaluation.errors, **evaluation.scores}
