"""The Trial: what a user writes to train a model. It holds no distributed code and no data location."""

from __future__ import annotations

from .context import TrialContext


class Trial:
    """One way to train a model, of no framework; `KerasTrial` is the kind for Keras models.

    Attributes:
        context: The job, as far as a Trial may know it.
    """

    def __init__(self, context: TrialContext) -> None:
        self.context = context
