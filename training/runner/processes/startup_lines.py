"""Recognizes the lines that TensorFlow and lakelens write while a rank starts; pure."""

from __future__ import annotations

import re

# "I0000 00:00:1795872873.289292   16129 port.cc:153] ..." or "2026-11-28 08:00:00.12: I tensorflow/port.cc:153] ...".
_HEAD = r"(?:[{0}]\d{{4}} [\d:.]+ +\d+ |\d{{4}}-\d\d-\d\d [\d:.]+: [{0}] [\w/.]*/)"
_STARTUP = re.compile(
    _HEAD.format("I") + r"\w+\.cc:\d+\] "
    "|" + _HEAD.format("WE") + r"(?:computation_placer|cuda_(?:blas|dnn|fft|platform)|cudart_stub)\.cc:\d+\] "
    "|WARNING: All log messages before absl::InitializeLog"
    "|To enable the following instructions: |lakelens: (?:no GPU is assigned to the ranks|feed )"
)


def is_startup_line(line: str) -> bool:
    """Returns whether a rank's line says only how it has started."""
    return _STARTUP.match(line) is not None
