"""What the values of a model are: as its framework shows it, or as its Trial says. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import NotProbabilitiesError, TrialError

if TYPE_CHECKING:
    import numpy.typing as npt

LOGITS, PROBABILITIES = "logits", "probabilities"
# Rounding moves no softmax or sigmoid below 0; a mean of probabilities in bfloat16 may be one unit above 1.
_BELOW, _ABOVE = 1e-5, 2.0**-8


def output_values(gives_logits: bool | None, stated: Any) -> str | None:
    """Returns `LOGITS` or `PROBABILITIES`; None if nothing shows it."""
    shown = None if gives_logits is None else LOGITS if gives_logits else PROBABILITIES
    if stated is None:
        return shown
    if stated not in (LOGITS, PROBABILITIES):
        raise TrialError(f"the Trial has outputs = {stated!r}; give {LOGITS!r} or {PROBABILITIES!r}, or remove it")
    if shown not in (None, stated):
        raise TrialError(
            f"the Trial has outputs = {stated!r}, but the model's last layer or its loss shows {shown}; correct one of "
            "them"
        )
    return str(stated)


def require_probabilities(values: npt.NDArray[Any]) -> None:
    """Checks the finite values of a model that gives probabilities, which need not sum to 1 (sigmoids)."""
    import numpy as np

    finite = values[np.isfinite(values)]
    if not finite.size:
        return
    least, most = float(finite.min()), float(finite.max())
    if least < -_BELOW or most > 1 + _ABOVE:
        raise NotProbabilitiesError(
            f"the model is recorded as giving probabilities, but gives values from {least:.4g} to {most:.4g}. End the "
            f"model with a softmax or sigmoid, or, if these are {LOGITS}, set from_logits=True in the loss, or "
            f"outputs = {LOGITS!r} in the Trial; then train again"
        )
