"""What the demo shows at the end: a table per class on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from lakelens.inference.evaluation.comparison import ClassChange


def class_table(lines: Sequence[ClassChange], highlighted: str) -> str:
    """Formats one line per class; the highlighted class is marked with an arrow."""
    width = max([len("class"), *(len(line.name) for line in lines)])
    head = f"  {'class':<{width}}  train v0  train v1  held out  recall v0  recall v1"
    rows = [
        f"{'>' if line.name == highlighted else ' '} {line.name:<{width}}  {line.trained_before or 0:8d}"
        f"  {line.trained_after or 0:8d}  {line.support:8d}  {_share(line.recall_before):>9}"
        f"  {_share(line.recall_after):>9}"
        for line in lines
    ]
    return "\n".join([head, *rows])


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
