"""The bar of a trial: what it shows, and where it is silent."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
import textwrap
from pathlib import Path

import pytest

from lakelens.progress import ImageBar, ImageLines, shown_progress

pytestmark = pytest.mark.unit


def test_a_bar_shows_epoch_step_images_per_second_and_metric(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    file = io.StringIO()
    bar = ImageBar("train birds@3", file)
    bar.reached("epoch 2/4, step 7/24", 112, 384)
    bar.measured("val_loss", 0.123456)
    bar.write("epoch 1/4 in 1.0 s")
    bar.reached("epoch 4/4, step 24/24", 384, 384)
    bar.close()
    shown = file.getvalue()
    assert "train birds@3: epoch 4/4, step 24/24: 100%" in shown
    assert "384/384" in shown
    assert "images/s, val_loss=0.1235]" in shown
    assert capsys.readouterr().out == "epoch 1/4 in 1.0 s\n"


def test_a_training_that_goes_back_to_a_checkpoint_takes_its_bar_along() -> None:
    file = io.StringIO()
    bar = ImageBar("train", file)
    for images in (160, 64, 80):
        bar.reached("step", images, 384)
    bar.close()
    assert "80.0/384" in file.getvalue()


def test_there_are_lines_where_stderr_is_no_terminal() -> None:
    with shown_progress("train") as shown:
        assert isinstance(shown, ImageLines)


def test_there_is_a_bar_in_a_terminal(tmp_path: Path) -> None:
    script = tmp_path / "bar.py"
    script.write_text(
        textwrap.dedent(
            """
            from lakelens.progress import shown_progress

            with shown_progress("train") as bar:
                bar.reached("step 1/2", 16, 32)
            """
        )
    )
    terminal, stderr = pty.openpty()
    fcntl.ioctl(stderr, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    try:
        subprocess.run([sys.executable, str(script)], stderr=stderr, check=True)
        os.close(stderr)
        shown = b""
        with contextlib.suppress(OSError):  # the end of what was shown
            while part := os.read(terminal, 65536):
                shown += part
        assert b"train: step 1/2:  50%" in shown
    finally:
        os.close(terminal)
