"""One class per image."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ...errors import TrialError
from .class_metrics import class_metrics, confusion_csv, per_class_csv
from .task import Task, TaskEvaluation

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .task import Counts, ModelOutput

LOGITS, PROBABILITIES = "logits", "probabilities"
# Key in the description of a model's output: one of the two above.
VALUES_KEY = "values"
_CONFUSION = "confusion"


class Classification(Task):
    """Labels are class numbers int32 [rows]; models give a value per class, or for two classes only the second's."""

    name: ClassVar[str] = "classification"
    prediction_ddl: ClassVar[str] = (
        "prediction INT, predicted_name STRING, probability FLOAT, probabilities ARRAY<FLOAT>, error STRING"
    )

    # One array per image. From a tensor [-1, classes] spark_udf would make an array of arrays, and then fail.
    recorded_outputs: ClassVar[Sequence[Mapping[str, Any]] | None] = (
        {"type": "array", "items": {"type": "float"}, "required": True},
    )
    makes_probabilities: ClassVar[bool] = True

    def check_output(self, output: ModelOutput) -> None:
        """Checks that a model gives a value per class; see `Task.check_output`."""
        classes, shape = len(self.class_names), output.shape
        if not isinstance(shape, tuple) or not shape or shape[-1] is None or shape[-1] == classes:
            return
        if shape[-1] == 1 and classes == 2 and "categorical" not in output.loss:
            return  # the second class's probability
        raise TrialError(
            f"the model gives {shape[-1]} values per image, the table has {classes} classes; build it for "
            "context.num_classes, or of two classes for one value with binary_crossentropy"
        )

    def describe_output(self, output: ModelOutput) -> dict[str, Any]:
        """Returns whether a model gives logits or probabilities; see `Task.describe_output`."""
        logits = output.gives_logits()
        return {} if logits is None else {VALUES_KEY: LOGITS if logits else PROBABILITIES}

    def gives_probabilities(self, described: Mapping[str, Any]) -> bool | None:
        """Reads what `describe_output` has recorded; see `Task.gives_probabilities`."""
        return {LOGITS: False, PROBABILITIES: True}.get(described.get(VALUES_KEY, ""))

    def no_counts(self) -> Counts:
        """Returns a confusion matrix without rows."""
        import numpy as np

        classes = len(self.class_names)
        return {_CONFUSION: np.zeros((classes, classes), np.int64)}

    def count(self, outputs: Any, labels: Any, described: Mapping[str, Any]) -> Counts:
        """Counts the pairs of true and predicted class of a batch; see `Task.count`."""
        import numpy as np

        classes = len(self.class_names)
        values, given = np.asarray(outputs, np.float32), np.asarray(labels)
        if values.ndim != 2 or values.shape[1] not in (1, classes):
            raise TrialError(f"the model gives {values.shape}; a confusion matrix needs [rows, {classes}]")
        if values.shape[1] == 1:
            predicted = (values[:, 0] > (0.0 if self.gives_probabilities(described) is False else 0.5)).astype(np.int64)
        else:
            predicted = values.argmax(axis=1)
        true = given.argmax(axis=1) if given.ndim == 2 and given.shape[1] == classes else given.reshape(-1)
        if true.shape != predicted.shape or not ((true >= 0) & (true < classes)).all():
            raise TrialError(
                f"the labels have shape {given.shape}; a confusion matrix needs a class number from 0 to {classes - 1} "
                "per row"
            )
        pairs = np.bincount(true.astype(np.int64) * classes + predicted, minlength=classes * classes)
        return {_CONFUSION: pairs.reshape(classes, classes).astype(np.int64)}

    def evaluate(self, counts: Mapping[str, npt.NDArray[np.int64]]) -> TaskEvaluation:
        """Derives confusion matrix, precision, recall and F1 of each class; see `Task.evaluate`."""
        confusion = counts[_CONFUSION]
        per_class = per_class_csv(class_metrics(confusion, self.class_names))
        tables = {"per_class.csv": per_class, "confusion.csv": confusion_csv(confusion, self.class_names)}
        return TaskEvaluation(tables, confusion)

    def explain(self, text: str) -> str | None:
        """Names a label without a class in the model; see `Task.explain`."""
        label = re.search(r"label value of (-?\d+) which is outside the valid range of \[0, (\d+)\)", text)
        if label is None:
            return None
        return (
            f"has a row with label {label[1]}, the model gives classes 0 to {int(label[2]) - 1}; correct the row's "
            "label, or set data.class_names to name every label"
        )
