"""An evaluation as one HTML page that needs nothing else; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from ...html_page import plot_tag, render_page, table_tag, tail_of, thumbnail_tag
from .comparison import ModelComparison
from .metrics import ModelMetrics
from .plots import thumbnail
from .result import EvaluationResult, Shown

# Pictures of a square look too large at the page's width.
_NARROW_PX = 600
_FEW_CLASSES = 15


def evaluation_page(
    result: EvaluationResult,
    plots: Mapping[str, bytes],
    mistakes: Sequence[Shown],
    changes: Mapping[str, Sequence[Shown]],
) -> str:
    """Renders the page.

    Args:
        result: The numbers.
        plots: PNG files by name; those of slices are called `slice_<column>`.
        mistakes: The wrong answers that the model is surest of.
        changes: Images whose answer changed, by heading.
    """
    evaluation = result.evaluation
    sections = [
        ("compare", "What changed", _comparison(result.compared, result.comparison, plots, changes)),
        (
            "classes",
            "Classes",
            plot_tag(plots.get("classes"), "Precision and recall of each class") + _table(evaluation),
        ),
        ("confusion", "Confusion matrix", _confusion(evaluation, plots)),
        ("calibration", "Calibration", _calibration(evaluation, plots)),
        ("slices", "Slices", _slices(result, plots)),
        ("mistakes", "Worst mistakes", _cards(mistakes)),
    ]
    split = "all splits" if result.split is None else f"split {result.split}"
    trained = "" if result.trained_on is None else f" · trained on {result.trained_on}"
    return render_page(
        f"{tail_of(result.model)} on {result.table.rstrip('/').rpartition('/')[2]}@{result.version}",
        f"{result.model} · checkpoint {result.digest[:12]}{trained} · {result.table}@{result.version}, {split}",
        _facts(evaluation),
        sections,
        f"Made by lakelens from {evaluation.rows:,} labelled rows of version {result.version}; "
        f"{evaluation.unlabelled:,} rows without a label count in no number.",
    )


def _facts(evaluation: ModelMetrics) -> dict[str, str]:
    facts = {"rows": f"{evaluation.rows:,}"}
    facts |= {name.replace("_", " "): f"{value:.3f}" for name, value in evaluation.scores.items() if name != "ece"}
    if evaluation.ece is not None:
        facts["calibration error"] = f"{evaluation.ece:.3f}"
    if evaluation.errors:
        facts["errors"] = f"{evaluation.errors:,}"
    return facts


def _table(evaluation: ModelMetrics) -> str:
    head = [("class", True), *((name, False) for name in ("number", "rows", "precision", "recall", "F1"))]
    return table_tag(
        head,
        (
            (one.name, str(one.label), f"{one.support:,}", *map(_share, (one.precision, one.recall, one.f1)))
            for one in evaluation.classes
        ),
    )


def _comparison(
    compared: str | None,
    comparison: ModelComparison | None,
    plots: Mapping[str, bytes],
    changes: Mapping[str, Sequence[Shown]],
) -> str:
    if comparison is None:
        return ""
    gained = (
        f" The class that gained most is <b>{escape(comparison.mended_class)}</b>." if comparison.mended_class else ""
    )
    text = (
        f"<p>Against {escape(str(compared))}: {comparison.changed:,} of {comparison.rows:,} answers changed. "
        f"{comparison.mended:,} fixed, {comparison.broken:,} broken, {comparison.still_wrong:,} still wrong with a "
        f"different answer. McNemar's exact test: p = {comparison.p_value:.2g}; that is how often models of equal "
        f"quality differ so unevenly.{gained}</p>"
    )
    head = [("class", True)]
    numbers = ("rows", "recall before", "recall after", "F1 before", "F1 after", "F1 change", "mended", "broken")
    head += [(name, False) for name in numbers]
    has_rows = any(one.trained_after is not None for one in comparison.classes)
    head += [("trained on, before", False), ("after", False)] if has_rows else []
    lines = []
    for one in comparison.classes:
        line = [one.name, f"{one.support:,}", _share(one.recall_before), _share(one.recall_after)]
        line += [_share(one.f1_before), _share(one.f1_after), _change(one.f1_before, one.f1_after)]
        line += [f"{one.mended:,}", f"{one.broken:,}"]
        line += [_count(one.trained_before), _count(one.trained_after)] if has_rows else []
        lines.append(line)
    cards = "".join(f"<h3>{escape(title)}</h3>{_cards(shown)}" for title, shown in changes.items() if shown)
    if comparison.changed:
        cards += "<p>Some of each kind are shown; changes.parquet beside this page lists all.</p>"
    return text + plot_tag(plots.get("comparison"), "Recall of both models") + table_tag(head, lines) + cards


def _calibration(evaluation: ModelMetrics, plots: Mapping[str, bytes]) -> str:
    if evaluation.ece is None:
        return ""
    text = (
        "<p>A calibrated model that says 0.8 is right in 80 % of these cases. Points below the dashed line: it is too "
        f"sure of itself. On average the two differ by {evaluation.ece:.3f}.</p>"
    )
    return text + plot_tag(plots.get("calibration"), "Share of right answers by probability", _NARROW_PX)


def _confusion(evaluation: ModelMetrics, plots: Mapping[str, bytes]) -> str:
    few = len(evaluation.classes) <= _FEW_CLASSES
    description = "Rows by true and predicted class"
    return plot_tag(plots.get("confusion_matrix"), description, _NARROW_PX if few else None)


def _slices(result: EvaluationResult, plots: Mapping[str, bytes]) -> str:
    html = ""
    for column, values in result.slices.items():
        rows = ((value, f"{one.rows:,}", _share(one.accuracy), _share(one.macro_f1)) for value, one in values.items())
        table = table_tag([(column, True), ("rows", False), ("accuracy", False), ("macro F1", False)], rows)
        html += f"<h3>{escape(column)}</h3>{plot_tag(plots.get(f'slice_{column}'), f'Accuracy by {column}')}{table}"
    return html


def _cards(shown: Sequence[Shown]) -> str:
    cards = []
    for one in shown:
        jpeg = thumbnail(one)
        image = "" if jpeg is None else thumbnail_tag(jpeg, one.path)
        answers = " → ".join(name if p is None else f"{name} {p:.2f}" for name, p in one.answers)
        cards.append(
            f'<div class="card"><h3>{escape(one.truth)} <small>{escape(answers)}</small></h3>'
            f'<div class="thumbs">{image}</div><figcaption>{escape(tail_of(one.path))}</figcaption></div>'
        )
    return f'<div class="cards" style="--card:170px;--thumb:120px">{"".join(cards)}</div>' if cards else ""


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _change(before: float | None, after: float | None) -> str:
    return "-" if before is None or after is None else f"{after - before:+.3f}"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
