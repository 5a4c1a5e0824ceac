"""What the demo shows at the end: a table per class on the terminal and one picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path

BEFORE_COLOUR, AFTER_COLOUR, HIGHLIGHT_COLOUR, WRONG_COLOUR = "#b8bec6", "#2a6fb0", "#d9822b", "#c0392b"
MOST_CLASSES_DRAWN = 25


@dataclass(frozen=True)
class ClassLine:
    """One class before and after.

    Attributes:
        name: The class.
        rows_before: Training images in the first version.
        rows_after: Training images in the second version.
        recall_before: Share of held-out images of the class that the first model finds, 0..1; None without images.
        recall_after: The same of the second model.
        support: Held-out images of the class.
    """

    name: str
    rows_before: int
    rows_after: int
    recall_before: float | None
    recall_after: float | None
    support: int


@dataclass(frozen=True)
class Sample:
    """One held-out image with what both models made of it."""

    path: str
    truth: str
    before: str
    after: str
    image: bytes = b""

    def with_image(self, image: bytes) -> Sample:
        """Copies the sample with its image's bytes."""
        return replace(self, image=image)


def class_table(lines: Sequence[ClassLine], highlighted: str) -> str:
    """Formats one line per class; the highlighted class is marked with an arrow."""
    width = max([len("class"), *(len(line.name) for line in lines)])
    head = f"  {'class':<{width}}  train v0  train v1  held out  recall v0  recall v1"
    rows = [
        f"{'>' if line.name == highlighted else ' '} {line.name:<{width}}  {line.rows_before:8d}  {line.rows_after:8d}"
        f"  {line.support:8d}  {_share(line.recall_before):>9}  {_share(line.recall_after):>9}"
        for line in lines
    ]
    return "\n".join([head, *rows])


def choose_samples(samples: Sequence[Sample], highlighted: str, count: int = 12) -> list[Sample]:
    """Picks what tells the story: the highlighted class first, and within a class the images whose answer changed."""
    return sorted(samples, key=lambda s: (s.truth != highlighted, s.before == s.after))[:count]


def draw_result(path: Path, lines: Sequence[ClassLine], samples: Sequence[Sample], highlighted: str) -> None:
    """Draws recall per class before and after beside a grid of sample predictions.

    With many classes only the `MOST_CLASSES_DRAWN` whose recall changed most are drawn, and the title says so.

    Args:
        path: The PNG to write.
        lines: One per class.
        samples: Shown four to a row, under each its truth and both answers.
        highlighted: The class that was under-represented.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    drawn = _most_changed(lines, highlighted)
    columns, rows = 4, max(1, -(-len(samples) // 4))
    figure = plt.figure(figsize=(14, max(6.0, 0.34 * len(drawn) + 1.6)), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[1.15, 1])
    _draw_bars(left, drawn, highlighted, len(lines))
    grid = right.subplots(rows, columns, squeeze=False)
    right.suptitle("Held-out images: truth, and what each model says", fontsize=12)
    for axis in grid.flat:
        axis.axis("off")
    for axis, sample in zip(grid.flat, samples, strict=False):
        _draw_sample(axis, sample)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_bars(figure, lines: Sequence[ClassLine], highlighted: str, total: int) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    axis = figure.subplots()
    places = range(len(lines))
    axis.barh([p - 0.2 for p in places], [line.recall_before or 0 for line in lines], 0.38, color=BEFORE_COLOUR)
    colours = [HIGHLIGHT_COLOUR if line.name == highlighted else AFTER_COLOUR for line in lines]
    axis.barh([p + 0.2 for p in places], [line.recall_after or 0 for line in lines], 0.38, color=colours)
    for place, line in zip(places, lines, strict=True):
        for offset, value in ((-0.2, line.recall_before), (0.2, line.recall_after)):
            axis.text((value or 0) + 0.01, place + offset, _share(value), va="center", fontsize=8)
    names = [f"{line.name}  ({line.rows_before} → {line.rows_after})" for line in lines]
    axis.set_yticks(list(places), names)
    for label, line in zip(axis.get_yticklabels(), lines, strict=True):
        label.set_fontweight("bold" if line.name == highlighted else "normal")
    axis.invert_yaxis()
    axis.set_xlim(0, 1.12)
    axis.set_xticks([0, 0.25, 0.5, 0.75, 1.0])
    axis.set_xlabel("recall on the same held-out images")
    axis.spines[["top", "right"]].set_visible(False)
    some = f" ({len(lines)} of {total} classes, most changed)" if len(lines) < total else ""
    axis.set_title(
        f"Recall per class: model of version 0 (grey), of version 1 (colour){some}\n"
        "in brackets: training images in version 0 → version 1",
        fontsize=12,
        loc="left",
    )


def _draw_sample(axis, sample: Sample) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    from PIL import Image

    axis.imshow(Image.open(BytesIO(sample.image)).convert("RGB"))
    right = sample.after == sample.truth
    axis.set_title(
        f"{sample.truth}\nv0: {sample.before}   v1: {sample.after}",
        fontsize=9,
        color="black" if right else WRONG_COLOUR,
    )


def _most_changed(lines: Sequence[ClassLine], highlighted: str) -> list[ClassLine]:
    if len(lines) <= MOST_CLASSES_DRAWN:
        return list(lines)

    def change(line: ClassLine) -> float:
        return abs((line.recall_after or 0) - (line.recall_before or 0))

    kept = sorted(lines, key=lambda line: (line.name != highlighted, -change(line)))[:MOST_CLASSES_DRAWN]
    return [line for line in lines if line in kept]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
