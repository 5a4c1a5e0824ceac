"""The Task: everything in a training that depends on what the labels are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import keras

    Counts = dict[str, npt.NDArray[np.int64]]


@dataclass(frozen=True)
class TaskEvaluation:
    """How good a model is on the validation rows, beyond the metrics that it is compiled with.

    Attributes:
        tables: CSV texts by file name.
        confusion: int64 [classes, classes], row: true class, column: predicted class; None for a task without.
    """

    tables: Mapping[str, str] = field(default_factory=dict)
    confusion: npt.NDArray[np.int64] | None = None


class Task(ABC):
    """What the labels of a training are, and what follows from it.

    It travels to the ranks, and holds no tensors.

    Args:
        class_names: Names of the classes by label number.

    Attributes:
        name: As checkpoints record it.
        prediction_ddl: The columns that inference writes, as in SQL.
    """

    name: ClassVar[str]
    prediction_ddl: ClassVar[str]

    def __init__(self, class_names: Sequence[str]) -> None:
        self.class_names = tuple(class_names)

    @property
    def feed_options(self) -> dict[str, Any]:
        """Options of `DeltaFeed.as_dataset` that make it deliver the task's labels."""
        return {}

    @abstractmethod
    def check_output(self, model: keras.Model, output: Any) -> None:
        """Checks that a compiled model gives what the task needs.

        Args:
            model: The model.
            output: Shape of its output, nested as that; None where the model does not tell.

        Raises:
            TrialError: If it does not.
        """

    @abstractmethod
    def describe_output(self, model: keras.Model, image_shape: tuple[int, int, int]) -> dict[str, Any]:
        """Says what a model's values are, for those who read its checkpoints.

        Args:
            model: The model.
            image_shape: Height, width and channels of its images.

        Returns:
            JSON values.
        """

    @abstractmethod
    def no_counts(self) -> Counts:
        """Returns the counts of no rows."""

    @abstractmethod
    def count(self, outputs: Any, labels: Any, described: Mapping[str, Any]) -> Counts:
        """Counts a batch of validation rows; counts add up over batches and ranks.

        Args:
            outputs: What the model gives, as arrays.
            labels: The labels that belong to it, as arrays.
            described: What `describe_output` has said of the model.

        Raises:
            TrialError: If these do not fit the task.
        """

    @abstractmethod
    def evaluate(self, counts: Mapping[str, npt.NDArray[np.int64]]) -> TaskEvaluation:
        """Derives what is recorded from the counts of all rows."""

    def explain(self, text: str) -> str | None:
        """Says in one sentence which label is at fault in an error of TensorFlow; None where none is.

        Args:
            text: The error's text.
        """
        return None
