"""One class per image."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ...errors import TrialError
from .class_metrics import class_metrics, confusion_csv, per_class_csv
from .output_values import LOGITS, PROBABILITIES, require_probabilities
from .task import Task, TaskEvaluation

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from ...etl.annotations.frames import ImageFrames
    from .task import Counts, ModelOutput

# Key in the description of a model's output: `LOGITS` or `PROBABILITIES`.
VALUES_KEY = "values"
_CONFUSION = "confusion"


class Classification(Task):
    """Labels are class numbers int32 [rows]; models give a value per class, or for two classes only the second's."""

    name: ClassVar[str] = "classification"
    prediction_columns: ClassVar[Mapping[str, str]] = {
        "prediction": "INT",
        "predicted_name": "STRING",
        "probability": "FLOAT",
        "probabilities": "ARRAY<FLOAT>",
    }

    # One array per image. From a tensor [-1, classes] spark_udf would make an array of arrays, and then fail.
    recorded_outputs: ClassVar[Sequence[Mapping[str, Any]] | None] = (
        {"type": "array", "items": {"type": "float"}, "required": True},
    )
    makes_probabilities: ClassVar[bool] = True

    def check_output(self, output: ModelOutput) -> None:
        """Checks that a model gives a value per class, of a known kind; see `Task.check_output`."""
        if output.shape is not None:
            self._check_shape(output.shape, output.loss)
        if output.values is None:
            raise TrialError(
                f"neither the model's last layer nor its loss shows whether it gives logits or probabilities; set "
                f"outputs = {LOGITS!r} or outputs = {PROBABILITIES!r} in the Trial's class"
            )

    def _check_shape(self, shape: Any, loss: str) -> None:
        classes = len(self.class_names)
        if not isinstance(shape, tuple) or not all(side is None or isinstance(side, int) for side in shape):
            raise TrialError(
                f"the model gives {shape}; a classifier must give one tensor of shape [rows, {classes}], so return "
                "this tensor alone"
            )
        if len(shape) != 2:
            raise TrialError(
                f"the model gives shape {shape}; a classifier must give [rows, {classes}], so pool or flatten the "
                "other axes"
            )
        if shape[-1] in (None, classes) or (shape[-1] == 1 and classes == 2 and "categorical" not in loss):
            return  # one value is that of the second class
        raise TrialError(
            f"the model gives {shape[-1]} values per image, the table has {classes} classes; build it for "
            "context.num_classes, or of two classes for one value with binary_crossentropy"
        )

    def describe_output(self, output: ModelOutput) -> dict[str, Any]:
        """Returns whether a model gives logits or probabilities; see `Task.describe_output`."""
        return {} if output.values is None else {VALUES_KEY: output.values}

    def gives_probabilities(self, described: Mapping[str, Any]) -> bool | None:
        """Reads what `describe_output` has recorded; see `Task.gives_probabilities`."""
        return {LOGITS: False, PROBABILITIES: True}.get(described.get(VALUES_KEY, ""))

    def answers(self, outputs: Any, described: Mapping[str, Any]) -> npt.NDArray[np.float32]:
        """Returns probabilities, float32 [rows, classes]; see `Task.answers`.

        A softmax converts logits. If a model of two classes, or of classes without names, gives one value per image, it
        belongs to the second class: a sigmoid converts its logit, and the first class gets the rest.
        """
        import numpy as np

        classes = len(self.class_names)
        if isinstance(outputs, (dict, list, tuple)):
            raise TrialError(f"the model has {len(outputs)} outputs; one of shape [rows, classes] is needed")
        values: npt.NDArray[np.float32] = np.asarray(outputs, np.float32)
        if values.ndim != 2:
            raise TrialError(f"the model gives shape {values.shape}; [rows, classes] is needed")
        is_binary = values.shape[1] == 1 and classes in (0, 2)
        if values.shape[1] < classes and not is_binary:
            names = ", ".join(self.class_names[:5]) + (", ..." if classes > 5 else "")
            raise TrialError(
                f"the model gives {values.shape[1]} values per image, its checkpoint names {classes} classes "
                f"({names}); end the model with one value per class"
            )
        logits = self.gives_probabilities(described) is False
        if not logits:
            require_probabilities(values)
        if is_binary:
            second = (1 + np.tanh(values / 2)) / 2 if logits else values  # a sigmoid that cannot overflow
            return np.concatenate([1 - second, second], axis=1)
        if not logits:
            return values
        with np.errstate(invalid="ignore"):  # infinite logits are an error of their row
            powers = np.exp(values - values.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True), np.float32)

    def prediction_arrays(
        self,
        answers: npt.NDArray[np.float32],
        valid: npt.NDArray[np.bool_],
        frames: Sequence[ImageFrames | None],
        image_size: tuple[int, int],
    ) -> dict[str, pa.Array]:
        """Writes the most probable class, of equals the smallest number, and all probabilities."""
        import numpy as np
        import pyarrow as pa

        missing = ~valid
        labels = np.where(valid, np.nan_to_num(answers, nan=-np.inf).argmax(axis=1), 0).astype(np.int32)
        names = [
            self.class_names[n] if ok and n < len(self.class_names) else None
            for n, ok in zip(labels, valid, strict=True)
        ]
        offsets = np.concatenate([[0], np.cumsum(np.where(missing, 0, answers.shape[1]))]).astype(np.int32)
        return {
            "prediction": pa.array(labels, pa.int32(), mask=missing),
            "predicted_name": pa.array(names, pa.string()),
            "probability": pa.array(answers[np.arange(len(answers)), labels], pa.float32(), mask=missing),
            "probabilities": pa.ListArray.from_arrays(
                pa.array(offsets, pa.int32()), pa.array(answers[valid].ravel(), pa.float32()), mask=pa.array(missing)
            ),
        }

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
        if self.gives_probabilities(described):
            require_probabilities(values)
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

    def measure(self, outputs: Any, labels: Any, described: Mapping[str, Any]) -> dict[str, float]:
        """Computes cross-entropy, in nats, and accuracy; see `Task.measure`."""
        import numpy as np

        counts = self.count(outputs, labels, described)[_CONFUSION]
        values, given = np.asarray(outputs, np.float64), np.asarray(labels).reshape(-1)
        if self.gives_probabilities(described) is False:
            likelihoods = _log_sigmoid(values) if values.shape[1] == 1 else _log_softmax(values)
        else:
            both = np.concatenate([1 - values, values], axis=1) if values.shape[1] == 1 else values
            likelihoods = np.log(np.clip(both, np.finfo(np.float32).eps, 1.0))
        loss = -likelihoods[np.arange(len(given)), given].mean()
        return {"loss": float(loss), "accuracy": float(counts.trace() / counts.sum())}

    def evaluate(self, counts: Mapping[str, npt.NDArray[np.int64]]) -> TaskEvaluation:
        """Derives confusion matrix, precision, recall and F1 of each class; see `Task.evaluate`."""
        confusion = counts[_CONFUSION]
        per_class = per_class_csv(class_metrics(confusion, self.class_names))
        tables = {"per_class.csv": per_class, "confusion.csv": confusion_csv(confusion, self.class_names)}

        def draw() -> bytes:
            from .plots import draw_confusion_matrix

            return draw_confusion_matrix(confusion, self.class_names)

        return TaskEvaluation(tables, {"confusion_matrix.png": draw})

    def explain(self, text: str) -> str | None:
        """Names a label without a class in the model; see `Task.explain`."""
        label = re.search(r"label value of (-?\d+) which is outside the valid range of \[0, (\d+)\)", text)
        if label is None:
            return None
        return (
            f"has a row with label {label[1]}, the model gives classes 0 to {int(label[2]) - 1}; correct the row's "
            "label, or set data.class_names to name every label"
        )


def _log_softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    import numpy as np

    shifted = logits - logits.max(axis=1, keepdims=True)
    found: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return found


def _log_sigmoid(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Returns the log-probabilities of both classes, float64 [rows, 2], of the second's logits [rows, 1]."""
    import numpy as np

    return np.concatenate([-np.logaddexp(0.0, logits), -np.logaddexp(0.0, -logits)], axis=1)
