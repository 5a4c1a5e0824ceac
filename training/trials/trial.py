"""The names that a user's module imports; `Trial` is the one of Keras."""

from __future__ import annotations

from .context import REQUIRED, TrialContext
from .keras_trial import KerasTrial
from .keras_trial import KerasTrial as Trial

__all__ = ["REQUIRED", "KerasTrial", "Trial", "TrialContext"]
