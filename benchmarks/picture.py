"""Draws `docs/benchmarks.png` from the kept results: lakelens and its best peer as shares of the physical limit.

python -m benchmarks.picture
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from .summary import read_results

_PICTURE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.png"


@dataclass(frozen=True)
class Comparison:
    """What one group of bars compares: names of series in one file of results."""

    title: str
    results: str
    lakelens: str
    peers: Mapping[str, str]
    limit: str
    smaller_is_better: bool = False


COMPARISONS = (
    Comparison(
        "ETL, work per processor second\nlimit: a pool of Pillow",
        "etl",
        "lakelens steady work",
        {"row UDF": "recipe steady work", "Ray Data": "ray data steady work"},
        "pool steady work",
    ),
    Comparison(
        "Feed of JPEG, work per processor second\nlimit: decoding bytes in memory",
        "feed_jpeg",
        "jpeg lakelens work",
        {"Petastorm": "jpeg petastorm work", "TFRecord": "jpeg tfrecord work"},
        "jpeg decode limit work",
    ),
    Comparison(
        "Feed of raw pixels, work per processor second\nlimit: copying memory",
        "feed_raw",
        "raw_rgb lakelens work",
        {"Petastorm": "raw_rgb petastorm work", "TFRecord": "raw_rgb tfrecord work"},
        "raw_rgb memcpy work",
    ),
    *(
        Comparison(
            f"Training at {side} px, {ranks} rank{'s' * (ranks > 1)}, images/s\nlimit: decoded arrays in memory",
            "training",
            f"{side} px, {ranks} rank(s): lakelens",
            {
                "TFRecord": f"{side} px, {ranks} rank(s): tfrecord",
                "Petastorm": f"{side} px, {ranks} rank(s): petastorm",
            },
            f"{side} px, {ranks} rank(s): memory",
        )
        for side, ranks in ((96, 1), (96, 2), (160, 1), (160, 2))
    ),
    Comparison(
        "Scoring with MobileNetV2, rows/s\nlimit: decoder and model without Spark",
        "inference_mobilenet",
        "mobilenet score",
        {"predict_batch_udf": "mobilenet predict_batch_udf", "Daft": "mobilenet daft"},
        "mobilenet limit",
    ),
    Comparison(
        "First job of two ranks, 1 / seconds\nlimit: importing TensorFlow",
        "launch",
        "lakelens cold",
        {"horovod.spark.run": "horovod.spark.run cold", "TorchDistributor": "TorchDistributor cold"},
        "TensorFlow import",
        smaller_is_better=True,
    ),
    Comparison(
        "Two ranks against one, steps/s of each\nlimit: no communication",
        "scaling",
        "2 ranks, backward pass: steps/s",
        {},
        "1 rank, backward pass: steps/s",
    ),
)


def shares(comparison: Comparison, series: Mapping[str, Any]) -> dict[str, float]:
    """Gives the share of the limit of lakelens, then that of its best peer: medians of the shares of each repeat."""
    limit = series[comparison.limit]["values"]

    def share(name: str) -> float:
        pairs = zip(series[name]["values"], limit, strict=True)
        return median(bound / value if comparison.smaller_is_better else value / bound for value, bound in pairs)

    peers = {name: share(series_name) for name, series_name in comparison.peers.items()}
    best = sorted(peers.items(), key=lambda peer: peer[1])[-1:]
    return {"lakelens": share(comparison.lakelens), **dict(best)}


def draw(groups: Mapping[str, Mapping[str, float]]) -> None:
    """Draws one group of horizontal bars for each comparison, with the limit as a line."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 0.8 * len(groups) + 0.9), dpi=110)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for place, group in enumerate(groups.values()):
        for row, (name, share) in enumerate(group.items()):
            ours, inside = name == "lakelens", share > 0.5
            axes.barh(place + 0.34 * row, share, 0.3, color="#3f51b5" if ours else "#b0b7c3")
            axes.text(
                0.01 if inside else share + 0.01,
                place + 0.34 * row,
                f"{name} {share:.2f}",
                color="white" if inside and ours else "black",
                va="center",
                fontsize=8,
            )
    axes.axvline(1, color="#c62828", linewidth=1)
    axes.text(1.0, -0.5, "limit", color="#c62828", ha="center", fontsize=8)
    axes.set_yticks([place + 0.17 for place in range(len(groups))], list(groups), fontsize=8)
    axes.set_xlim(0, 1.15)
    axes.invert_yaxis()
    axes.set_xlabel("share of the limit; longer is better", fontsize=8)
    axes.tick_params(axis="both", labelsize=8, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(_PICTURE, metadata={"Software": None})


if __name__ == "__main__":
    argparse.ArgumentParser(description="Draw docs/benchmarks.png from the kept results.").parse_args()
    results = read_results()
    draw({each.title: shares(each, results[each.results]["series"]) for each in COMPARISONS})
