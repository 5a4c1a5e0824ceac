"""The Trial: what a user writes to train a model. It holds no distributed code and no data location."""

from __future__ import annotations

from .context import TrialContext


class Trial:
    """Base class of Trials, independent of a framework; use `KerasTrial` for Keras models.

    Attributes:
        context: The job as seen by a Trial.
    """

    def __init__(self, context: TrialContext) -> None:
        self.context = context
