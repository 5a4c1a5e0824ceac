"""How far the recall of a class may be off because it has few rows; pure."""

from __future__ import annotations

import math

# A class with fewer rows is marked.
FEW_ROWS = 20
# Of the normal distribution: 95 % lie within so many standard deviations.
_Z = 1.959964


def recall_interval(recall: float | None, rows: int) -> tuple[float, float] | None:
    """Gives Wilson's interval of 95 % for a share of independent rows; None without rows.

    Source: E. B. Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", Journal of the
    American Statistical Association 22 (1927).
    """
    if recall is None or rows == 0:
        return None
    weight = 1 + _Z**2 / rows
    middle = (recall + _Z**2 / (2 * rows)) / weight
    side = _Z / weight * math.sqrt(recall * (1 - recall) / rows + _Z**2 / (4 * rows**2))
    return max(0.0, middle - side), min(1.0, middle + side)
