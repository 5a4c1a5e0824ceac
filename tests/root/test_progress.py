"""Progress counts images: a bar in a terminal, elsewhere a line now and then."""

from __future__ import annotations

import io
import sys
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from lakelens import progress
from lakelens.progress import ImageCount, ProgressBar, ProgressLines, image_counter, image_progress, shown_progress

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.unit
def test_what_many_tasks_count_is_added_up(tmp_path):
    file = tmp_path / "images"
    file.touch()
    count = ImageCount(file)
    with image_counter(str(file)) as one, image_counter(str(file)) as other:
        one(True)
        other(False)
        assert count.read() == (2, 1)
        one(True)
    assert count.read() == (3, 1)
    with image_counter(str(tmp_path / "of another machine")) as out_of_reach:
        out_of_reach(True)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.unit
@pytest.mark.parametrize(
    ("every_s", "reached", "lines"),
    [
        (
            0,
            ((0, 0), (5, 1250)),
            ("0 of 5,000 images, 0.0 images/s", "1,250 of 5,000 images, 250.0 images/s, 00:15 left"),
        ),
        # The ranks took 40 s to start, which counts for no rate.
        (30, ((40, 16), (69, 306), (70, 316)), ("316 of 5,000 images, 10.0 images/s, 07:48 left",)),
        # A log that has a line ends with the last amount.
        (
            30,
            ((0, 0), (30, 300), (31, 310)),
            ("300 of 5,000 images, 10.0 images/s, 07:50 left", "310 of 5,000 images, 10.0 images/s, 07:49 left"),
        ),
        # A training that goes back to a checkpoint begins its rate again.
        (30, ((0, 64), (20, 320), (40, 128), (70, 158)), ("158 of 5,000 images, 1.0 images/s, 1:20:42 left",)),
    ],
)
def test_a_log_gets_a_line_when_it_is_due_with_count_rate_time_left_and_bad_ones(monkeypatch, every_s, reached, lines):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("lakelens.progress.time", SimpleNamespace(monotonic=lambda: clock.now))
    file = io.StringIO()
    shown = ProgressLines("train birds", file, every_s=every_s)
    shown.measured("bad", 3)
    for clock.now, images in reached:
        shown.reached("", images, 5000)
    shown.close()
    assert file.getvalue() == "".join(f"train birds: {line}, bad 3\n" for line in lines)


@pytest.mark.unit
def test_a_short_work_says_nothing_in_a_log_and_a_terminal_has_a_bar(capsys, monkeypatch):
    for images in (5, 0):
        with image_progress("ingest", images, lambda: (2, 0)):
            pass
    with pytest.raises(RuntimeError, match="of the body"), image_progress("score", 8):
        raise RuntimeError("of the body")
    assert capsys.readouterr().err == ""
    with shown_progress("train") as shown:
        assert isinstance(shown, ProgressLines)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with shown_progress("train") as shown:
        shown.reached("step 1/2", 16, 32)
    assert "train: step 1/2:  50%" in terminal.getvalue()
    with image_progress("score", 8, lambda: (6, 2)):  # where tasks cannot write, as the driver has counted
        pass
    assert "6.00/8.00" in terminal.getvalue()
    assert "bad=2" in terminal.getvalue()


@pytest.mark.spark
def test_a_terminal_shows_the_images_of_a_task_that_still_runs(spark, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setattr(progress, "_POLL_S", 0.05)
    seen, deadline = tmp_path / "seen", time.time() + 120

    def look() -> None:
        while "3.00/4.00" not in terminal.getvalue() and time.time() < deadline:
            time.sleep(0.05)
        assert "3.00/4.00" in terminal.getvalue()
        seen.touch()

    with image_progress("ingest", 4) as file:

        def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with image_counter(file) as count:
                for batch in batches:
                    for number in range(batch.num_rows):
                        count(number != 1)
                    while not seen.exists() and time.time() < deadline:
                        time.sleep(0.05)
                    yield batch

        watcher = threading.Thread(target=look)
        watcher.start()
        assert spark.range(0, 3, 1, 1).mapInArrow(work, "id BIGINT").count() == 3
        watcher.join()
    assert seen.exists()
    assert "ingest:  75%" in terminal.getvalue()
    assert "bad=1" in terminal.getvalue()


@pytest.mark.unit
def test_a_bar_shows_epoch_step_images_per_second_and_metric(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    file = io.StringIO()
    bar = ProgressBar("train birds@3", file)
    for images in (160, 64, 80):  # a training that goes back to a checkpoint takes its bar along
        bar.reached("epoch 2/4", images, 384)
    bar.measured("val_loss", 0.5)
    assert "80.0/384" in file.getvalue()
    bar.measured("val_loss", 0.123456)
    bar.write("epoch 1/4 in 1.0 s")
    bar.reached("epoch 4/4, step 24/24", 384, 384)
    bar.close()
    shown = file.getvalue()
    assert "train birds@3: epoch 4/4, step 24/24: 100%" in shown
    assert "384/384" in shown
    assert "images/s, val_loss=0.1235]" in shown
    assert capsys.readouterr().out == "epoch 1/4 in 1.0 s\n"
