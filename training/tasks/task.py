"""The Task: everything in a training that depends on what the labels are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from ...etl.annotations.frames import ImageFrames
    from ..feed.feed import DeltaFeed

    Counts = dict[str, npt.NDArray[np.int64]]


@dataclass(frozen=True)
class ModelOutput:
    """A backend's description of the output of a compiled model."""

    shape: Any  # Its shape, nested like the output, with a name for what is not a tensor; None if unknown
    loss: str  # Name of the loss; "" if unknown
    values: str | None  # `logits` or `probabilities`; None if nothing shows it


@dataclass(frozen=True)
class TaskEvaluation:
    """The evaluation of a model on the validation rows, beyond its compiled metrics."""

    tables: Mapping[str, str]  # CSV texts by file name
    # Functions that draw PNG files, by file name; they raise MissingDependencyError without matplotlib
    plots: Mapping[str, Callable[[], bytes]]


class Task(ABC):
    """The kind of labels of a training, and everything that depends on it.

    It is sent to the ranks, and holds no tensors.

    Args:
        class_names: Names of the classes by label number.

    Attributes:
        name: Its name in experiments and checkpoints.
        prediction_columns: The columns that inference writes, with their SQL types. An `error` follows them.
        recorded_outputs: The outputs in the signature of the MLflow model; None if they have no fixed form.
        needs_frames: Whether the columns of a prediction depend on the stored image's size and on its file.
        makes_probabilities: Whether the MLflow model turns logits of a last linear layer into probabilities.
        metric_names: Metrics that each validation derives from counts, in addition to the compiled ones;
            in the run their names begin with `val_`.
        table_options: Options of `DeltaFeed` for the task's labels.
    """

    name: ClassVar[str]
    prediction_columns: ClassVar[Mapping[str, str]]
    recorded_outputs: ClassVar[Sequence[Mapping[str, Any]] | None] = None
    needs_frames: ClassVar[bool] = False
    makes_probabilities: ClassVar[bool] = False
    metric_names: ClassVar[Sequence[str]] = ()
    table_options: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, class_names: Sequence[str]) -> None:
        self.class_names = tuple(class_names)

    def check_feed(self, feed: DeltaFeed) -> None:  # noqa: B027 - by default every table has them
        """Checks that a table has the task's labels; raises NotAnImageTableError if not."""

    @property
    def feed_options(self) -> dict[str, Any]:
        """Options of `DeltaFeed.as_dataset` for the task's labels."""
        return {}

    @abstractmethod
    def check_output(self, output: ModelOutput) -> None:
        """Checks that a model's output fits the task; raises TrialError if not."""

    @abstractmethod
    def describe_output(self, output: ModelOutput) -> dict[str, Any]:
        """Describes a model's output values in JSON values, for readers of its checkpoints: `described` below."""

    def gives_probabilities(self, described: Mapping[str, Any]) -> bool | None:
        """Returns whether a model's values are probabilities; None if its description does not tell."""
        return None

    @abstractmethod
    def answers(self, outputs: Any, described: Mapping[str, Any]) -> npt.NDArray[np.float32]:
        """Turns a model's outputs for a batch, as arrays, into its answers, float32 [rows, ...].

        The shape of a row is always the same, and its values are finite for finite outputs.
        """

    @abstractmethod
    def prediction_arrays(
        self,
        answers: npt.NDArray[np.float32],
        valid: npt.NDArray[np.bool_],
        frames: Sequence[ImageFrames | None],
        image_size: tuple[int, int],
    ) -> dict[str, pa.Array]:
        """Writes answers as the columns of `prediction_columns`.

        Args:
            answers: float32 [rows, ...], as `answers` gives them.
            valid: bool [rows]; the columns of other rows are null.
            frames: [rows], the stored images and their files; None without `needs_frames` and for rows that are not
                valid.
            image_size: Height and width of the images that the model takes.
        """

    @abstractmethod
    def no_counts(self) -> Counts:
        """Returns the counts of no rows."""

    def joined(self, parts: Sequence[Counts]) -> Counts:
        """Joins counts of batches or ranks, in any order, into those of all their rows; by default their sums."""
        return {name: sum((part[name] for part in parts), start=none) for name, none in self.no_counts().items()}

    @abstractmethod
    def count(self, outputs: Any, labels: Any, described: Mapping[str, Any]) -> Counts:
        """Counts a batch of validation rows, outputs and labels as arrays, for `joined`."""

    def picture(self, images: Any, outputs: Any, labels: Any, described: Mapping[str, Any]) -> bytes | None:
        """Draws some images, float32 [rows, height, width, 3] from 0 to 255, as a JPEG file; None without pictures."""
        return None

    def metrics(self, counts: Counts) -> dict[str, float]:
        """Derives the metrics of `metric_names` from the counts of all rows."""
        return {}

    def warning(self, counts: Counts) -> str | None:
        """Returns what is probably wrong with a trained model of these counts; None if nothing is."""
        return None

    def measure(self, outputs: Any, labels: Any, described: Mapping[str, Any]) -> dict[str, float]:
        """Computes means over a batch of validation rows by name, with `loss` if the task has one; {} if not needed."""
        return {}

    @abstractmethod
    def evaluate(self, counts: Mapping[str, npt.NDArray[np.int64]]) -> TaskEvaluation:
        """Derives the recorded evaluation from the counts of all rows."""

    def explain(self, text: str) -> str | None:
        """Names the label that caused an error of TensorFlow, in one sentence, by its text; None for other causes."""
        return None
