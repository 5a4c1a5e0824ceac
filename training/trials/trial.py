"""The Trial: what a user writes to train a model. It holds no distributed code and no data location."""

from __future__ import annotations

from typing import ClassVar, Literal

from ..checkpoints.manifests import KERAS
from .context import TrialContext


class Trial:
    """Base class of Trials, independent of a framework; use `KerasTrial` or `TorchTrial`.

    Attributes:
        framework: The framework of its models, `keras` or `torch`.
        outputs: What a classifier's values are, `logits` or `probabilities`. Needed only if neither the model's last
            layer nor its loss shows it; the job then names this attribute.
        context: The job as seen by a Trial.
    """

    framework: ClassVar[str] = KERAS
    outputs: Literal["logits", "probabilities"] | None = None

    def __init__(self, context: TrialContext) -> None:
        self.context = context
