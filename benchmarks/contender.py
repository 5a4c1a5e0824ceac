"""A contender: a class in its own process, which the benchmark calls once for each measurement.

Each contender has its own interpreter, JVM and TensorFlow, so that start-up stays out of what is measured, one
contender's settings cannot reach another, and a peer may come from its own environment. Parent and child speak
JSON lines. What the child prints goes to a log file. This module needs the standard library only.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from .harness import tell

_CHECKOUT = Path(__file__).resolve().parent.parent
_LOG_LINES = 40
_START_S = 300.0


class ContenderError(Exception):
    """Raised when a contender fails, dies or does not answer in time; carries the end of its log."""


class Contender:
    """A running object of a class, whose argument `folder` is a new folder that holds the log too."""

    def __init__(self, kind: type, folder: Path, *, python: str | Path = sys.executable, **arguments: Any) -> None:
        module = kind.__module__
        if module == "__main__":
            module = getattr(sys.modules[module].__spec__, "name", module)
        self.target = f"{module}:{kind.__name__}"
        self.python = python
        self._log = folder / "log"
        tell(f"starting {folder.name}")
        folder.mkdir(parents=True)
        variables = dict(os.environ)
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_CHECKOUT), os.environ.get("PYTHONPATH")]))
        variables.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        variables.setdefault("CUDA_VISIBLE_DEVICES", "")
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [str(python), "-m", "benchmarks.contender"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=variables,
                cwd=folder,
                start_new_session=True,
            )
        try:
            self.call(self.target, timeout_s=_START_S, folder=str(folder), **arguments)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process to watch; its descendants do the work."""
        return self._process.pid

    def call(self, method: str, *, timeout_s: float = 900.0, **arguments: Any) -> dict[str, Any]:
        """Calls a method and gives what it returned."""
        line = json.dumps({"method": method, "arguments": arguments}) + "\n"
        pipe = self._process.stdin
        if pipe is None:
            raise ContenderError(f"{self.target}: has no standard input")
        try:
            pipe.write(line.encode())
            pipe.flush()
        except (BrokenPipeError, ValueError):
            raise ContenderError(f"{self.target}.{method}: its process is gone\n{self.log_tail()}") from None
        reply = self._reply(method, timeout_s)
        if "error" in reply:
            raise ContenderError(f"{self.target}.{method}: {reply['error']}\n{self.log_tail()}")
        value: dict[str, Any] = reply["value"]
        return value

    def _reply(self, method: str, timeout_s: float) -> dict[str, Any]:
        pipe = self._process.stdout
        if pipe is None:
            raise ContenderError(f"{self.target}: has no standard output")
        if not select.select([pipe], [], [], timeout_s)[0]:
            raise ContenderError(f"{self.target}.{method}: no answer within {timeout_s:g} s\n{self.log_tail()}")
        line = pipe.readline()
        if not line:
            code = self._process.wait()
            raise ContenderError(f"{self.target}.{method}: its process ended with {code}\n{self.log_tail()}")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def log_tail(self) -> str:
        """The last lines that the contender printed."""
        return "\n".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:])

    def close(self, timeout_s: float = 30.0) -> None:
        """Ends the contender and everything that it started."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            if self._process.stdout is not None:
                self._process.stdout.close()

    def __enter__(self) -> Contender:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve() -> int:
    """The child's side: constructs what the first line names, then answers calls until standard input ends."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print would otherwise be taken for a reply
    subject: Any = None
    # readline, not iteration: that one reads ahead.
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        started = time.perf_counter()
        try:
            if subject is None:
                module, _, name = request["method"].partition(":")
                subject = getattr(importlib.import_module(module), name)(**request["arguments"])
                value: dict[str, Any] = {}
            else:
                value = getattr(subject, request["method"])(**request["arguments"]) or {}
            value.setdefault("seconds", time.perf_counter() - started)
            reply: dict[str, Any] = {"value": value}
        except Exception as error:  # noqa: BLE001 - the parent raises it again
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
    close = getattr(subject, "close", None)
    if close is not None:
        close()
    return 0


if __name__ == "__main__":
    sys.exit(serve())
