"""Progress bars: on the driver only, silent when the output is neither a terminal nor a notebook."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

if TYPE_CHECKING:
    from typing import TextIO

    from pyspark.sql import SparkSession

_POLL_S = 0.5
_JOIN_S = 5.0


class TrialBar:
    """The bar of a trial: epoch, step, images per second, metric.

    Args:
        name: What is trained, shown left of the bar.
        file: Where it is drawn; None is stderr, or a notebook's widget.
    """

    def __init__(self, name: str, file: TextIO | None = None) -> None:
        self._name = name
        self._bar: tqdm[Any] = _bar_class()(desc=name, unit=" images", unit_scale=True, dynamic_ncols=True, file=file)

    def reached(self, place: str, images: int, total: int) -> None:
        """Moves the bar.

        Args:
            place: Epoch and step, for people.
            images: Images so far.
            total: Images in all.
        """
        if self._bar.total != total:
            # What an earlier start has trained says nothing about this one's speed.
            self._bar.reset(total)
            self._bar.initial = self._bar.n = images
        self._bar.set_description(f"{self._name}: {place}", refresh=False)
        self._bar.update(images - self._bar.n)

    def measured(self, metric: str, value: float) -> None:
        """Shows the latest value of the metric that decides."""
        self._bar.set_postfix({metric: f"{value:.4g}"})

    def write(self, text: str) -> None:
        """Prints a line above the bar."""
        self._bar.write(text, file=sys.stdout)

    def close(self) -> None:
        """Leaves the bar as it is."""
        self._bar.close()


@contextmanager
def trial_progress(name: str) -> Iterator[TrialBar | None]:
    """Returns a bar for a trial; None where nobody would see it move.

    Args:
        name: What is trained.
    """
    if not (sys.stderr.isatty() or in_notebook()):
        yield None
        return
    bar = TrialBar(name)
    try:
        yield bar
    finally:
        bar.close()


def _bar_class() -> type[tqdm[Any]]:
    # Without ipywidgets tqdm's widget is a warning.
    if not in_notebook() or importlib.util.find_spec("ipywidgets") is None:
        return tqdm
    from tqdm.notebook import tqdm_notebook

    widget: type[tqdm[Any]] = tqdm_notebook
    return widget


def in_notebook() -> bool:
    """Tells whether this process is the kernel of a notebook."""
    kernel = sys.modules.get("IPython")
    shell = kernel.get_ipython() if kernel is not None else None
    return shell is not None and hasattr(shell, "kernel")


@contextmanager
def spark_progress(spark: SparkSession, description: str) -> Iterator[None]:
    """Shows on stderr how many tasks of the running Spark stages are done, while the body runs.

    Args:
        spark: The session whose stages are watched, those of other threads included.
        description: What is under way, shown left of the bar.
    """
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    bar = tqdm(desc=description, unit="task", file=sys.stderr, leave=False)
    watcher = threading.Thread(target=_watch, args=(spark, bar, done), name="lakelens-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join(_JOIN_S)
        bar.close()


def _watch(spark: SparkSession, bar: tqdm[None], done: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    while not done.wait(_POLL_S):
        stages = [info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage)) is not None]
        if stages:
            bar.total = sum(stage.numTasks for stage in stages)
            bar.n = sum(stage.numCompletedTasks for stage in stages)
        bar.refresh()
