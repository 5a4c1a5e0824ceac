"""The body of one rank: a fresh interpreter that receives the training function, runs it and reports.

It uses neither Spark nor Keras. Its supervisor passes three descriptors (a line, the pickled function, a file for the
value); its rank arrives on the line, so that heavy imports run while the launcher still waits for the other ranks.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import io
import json
import linecache
import mmap
import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from ....error_reports import message_of, report_of
from ....errors import LaunchError
from ....freed_memory import keep_freed_memory
from ....module_aliases import ModuleAliases
from ....spark.jvm import is_verbose
from ....user_frames import tidied, user_traceback
from ...rank import lazy_imports, process_context
from ...rank.driver_line import DriverLine
from ...rank.frames import STACK_SIGNAL, Kind
from ...rank.process_context import RankLink
from .failure_words import is_consequence

EXIT_RAISED = 1
EXIT_TERMINATED = 128 + signal.SIGTERM
_WITH_A_BUFFER = frozenset({io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom})


def main(argument: str) -> None:
    """Runs the rank that `argument` (JSON: line, payload, value, preload) describes, and ends the process."""
    spec: dict[str, Any] = json.loads(argument)
    keep_freed_memory()
    line = DriverLine(socket.socket(fileno=spec["line"]))
    signal.signal(signal.SIGTERM, _terminate)
    faulthandler.register(STACK_SIGNAL, all_threads=True)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="replace")  # type: ignore[union-attr]
    # TensorFlow imports generated functions from the folder for temporary files, and leaves the bytecode there.
    sys.dont_write_bytecode = True
    lazy_imports.install()
    use_hvd_for_keras()
    with lazy_imports.without_collections():
        for name in spec["preload"]:
            # Only a head start: the training function's own import raises the error that the user sees.
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    link = _receive_assignment(line)
    process_context.attach(link)
    link.send(Kind.READY, {"pid": os.getpid()})
    code = _run(link, spec["payload"], spec["value"])
    _spare_the_last_collection()
    sys.exit(code)


def use_hvd_for_keras() -> None:
    """Gives this process `lakelens.hvd` for Horovod's Keras modules, which do not work with Keras 3."""
    ModuleAliases("lakelens.training.distributed", "horovod.tensorflow.keras", "horovod.keras").install()


def _terminate(number: int, frame: object) -> None:
    # Unwinds the user's `finally` blocks; a second signal ends the process at once.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.exit(EXIT_TERMINATED)


def _receive_assignment(line: DriverLine) -> RankLink:
    assignment = line.assignment()
    if assignment is None:
        raise SystemExit(EXIT_TERMINATED)  # the supervisor ended before the job began
    os.environ.update(assignment["env"])
    return RankLink(
        rank=assignment["rank"],
        size=assignment["size"],
        local_rank=assignment["local_rank"],
        local_size=assignment["local_size"],
        attempt=assignment["attempt"],
        name=assignment["name"],
        job_key=bytes.fromhex(assignment["job_key"]),
        line=line,
    )


def _run(link: RankLink, payload: int, value: int) -> int:
    try:
        result = _result(payload)
        stored = _store(result, value) if link.rank == 0 else {}
    except SystemExit as stop:
        if stop.code == EXIT_TERMINATED:
            return EXIT_TERMINATED
        _report(link, stop)
        return stop.code if isinstance(stop.code, int) else EXIT_RAISED
    except BaseException as error:  # noqa: BLE001 - whatever the user's function raises goes to the driver
        _report(link, error)
        return EXIT_RAISED
    link.send(Kind.RETURNED, stored)
    return 0


def _result(payload: int) -> Any:
    """Runs the training function; gives None for one that ends with sys.exit(0)."""
    try:
        function, kwargs = _load(payload)
        return function(**kwargs)
    except SystemExit as stop:
        if stop.code in (None, 0):
            return None
        raise


def _load(payload: int) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Unpickles the function and its arguments, which come from this job's driver by Spark's own channel."""
    with mmap.mmap(payload, 0, access=mmap.ACCESS_READ) as view:
        try:
            function, kwargs, sources = pickle.loads(view)  # noqa: S301
        except ModuleNotFoundError as error:
            raise LaunchError(
                f"this rank's Python cannot import {error.name!r}, which the training function needs; "
                f"install it on every worker, send it with --py-files, or define the function in the script or "
                f"notebook itself"
            ) from error
    linecache.cache |= {name: (sum(map(len, lines)), None, lines, name) for name, lines in sources.items() if lines}
    return function, kwargs


def _spare_the_last_collection() -> None:
    """Skips the interpreter's final garbage collection through all of TensorFlow, which takes a second.

    Files that it would have flushed are flushed here.
    """
    gc.unfreeze()  # frozen objects of the import are not visited otherwise
    for thing in gc.get_objects():
        if type(thing) in _WITH_A_BUFFER:
            # Ignore broken or closed files.
            with contextlib.suppress(OSError, ValueError):
                thing.flush()
    gc.disable()
    gc.freeze()


def _store(result: Any, descriptor: int) -> dict[str, Any]:
    """Writes rank 0's value to the supervisor's file, and describes its layout."""
    from .return_value import write_value

    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.seek(0)
            file.truncate()
            return write_value(result, file)
    except OSError as error:
        raise LaunchError(
            f"rank 0's value could not be written into the folder for temporary files ({error}); free space there, set "
            f"TMPDIR to another folder, or save the object and return its path"
        ) from error
    except Exception as error:
        raise LaunchError(
            f"the training function returned {type(result).__name__}, which cannot be pickled ({message_of(error)}); "
            f"return plain values, or save the object and return its path"
        ) from error


def _report(link: RankLink, error: BaseException) -> None:
    """Sends the error, once whole and once with the user's frames alone."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__") == __name__:
        frames = frames.tb_next
    own = isinstance(error, LaunchError)
    frames = None if own else frames
    report = report_of(error, frames)
    report["message"] = tidied(report["message"])
    shown = "" if own else report["traceback"] if is_verbose() else user_traceback(error, frames)
    consequence = is_consequence(type(error).__name__, report["message"])
    link.send(Kind.RAISED, {**report, "shown": shown, "consequence": consequence})
