"""Describes the end of a rank, and recognizes errors that only follow from another rank's and startup lines; pure."""

from __future__ import annotations

import re
import signal
from typing import Any

from ....error_reports import class_of
from ....errors import UsageError

# Messages of Horovod and Gloo on ranks that waited for a failed rank.
_CONSEQUENCE_TYPES = frozenset({"HorovodInternalError"})
_CONSEQUENCE_WORDS = (
    "Horovod has been shut down",
    "[gloo/transport/",
    "/gloo/transport/",
    "gloo/rendezvous/",
    "Wait timeout after",
    "Connection closed by peer",
    "HTTP request failed.",
)


def is_consequence(type_name: str, message: str) -> bool:
    """Returns whether an exception only reports that some other rank went away."""
    return type_name in _CONSEQUENCE_TYPES or any(words in message for words in _CONSEQUENCE_WORDS)


def signal_name(number: int) -> str:
    """Returns the name of a signal, such as SIGKILL."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_raised(raised: dict[str, Any], *, with_message: bool = True) -> str:
    """Describes what a rank raised, with advice if memory was refused."""
    text = f"raised {raised.get('type')}" + (f": {raised.get('message')}" if with_message else "")
    if str(raised.get("type")).rpartition(".")[2] in _REFUSED_MEMORY:
        return f"{text.rstrip(': ')} (out of memory: use smaller batches, or give each rank more memory)"
    return text


def tells_of_the_machine(raised: dict[str, Any]) -> bool:
    """Whether a rank raised an error of lakelens that is not about the call's arguments."""
    kind = class_of(raised.get("type"))
    return kind is not None and not issubclass(kind, UsageError)


# Python's errors, and TensorFlow's for its GPU or allocator.
_REFUSED_MEMORY = frozenset({"MemoryError", "_ArrayMemoryError", "ResourceExhaustedError"})


def describe_end(end: dict[str, Any]) -> str:
    """Describes the end of a process that neither returned nor raised."""
    peak = f"; its memory peaked at {end['peak_bytes'] / 2**20:.0f} MiB" if end.get("peak_bytes") else ""
    if end.get("out_of_memory"):
        return (
            f"was killed by the kernel: out of memory{peak}; give each rank more memory, use smaller batches, or fewer "
            f"ranks per host"
        )
    if end.get("signal"):
        name = signal_name(end["signal"])
        cause = " (kill -9, or the kernel when out of memory)" if name == "SIGKILL" else ""
        return f"was ended by {name}{cause}{peak}"
    code = end.get("exit_code")
    if code == 0:
        return "ended its process with exit code 0 before the training function had returned"
    return f"ended with exit code {code} without an exception"


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
