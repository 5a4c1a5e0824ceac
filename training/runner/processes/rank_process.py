"""One rank's process, its keeper process, and the pipes to both: output becomes events, commands are input."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from ....errors import LaunchError
from ...rank.frames import Frame, FrameReader, Kind, pack
from . import keeper
from .rank_record import RankEvent, checked_event

SOFT_END_S = 3.0
MAX_LINE_BYTES = 8192
_KEEPER_MAIN = "import sys; exec(compile(open(int(sys.argv[2])).read(), 'lakelens-keeper', 'exec'))"
_RANK_MAIN = (
    "import sys, json; spec = json.loads(sys.argv[1]); sys.path[:] = spec['path']; "
    "from lakelens.training.runner.processes.rank_main import main; main(sys.argv[1])"
)
_FRAME_EVENTS = {
    Kind.READY: "ready",
    Kind.JOINING: "joining",
    Kind.JOINED: "joined",
    Kind.RETURNED: "returned",
    Kind.RAISED: "raised",
    Kind.PROGRESS: "progress",
    Kind.ASK: "asked",
}


@dataclass(frozen=True)
class RankSpec:
    """How to start one rank's process."""

    rank: int  # Its number, for titles and events
    payload: IO[bytes]  # File that holds the pickled function and arguments
    value: IO[bytes]  # Empty file for rank 0's value
    environment: Mapping[str, str]  # All environment variables of the process
    preload: Sequence[str] = ()  # Modules to import before the assignment arrives
    title: str = ""  # Text that `ps` shows next to `lakelens-rank`


def temporary_file(content: bytes = b"") -> IO[bytes]:
    """Makes an unnamed file, which uses disk space only while a process holds it open."""
    try:
        file = tempfile.TemporaryFile()  # noqa: SIM115 - handed to processes, closed by the launcher
        append(file, content)
    except OSError as error:
        raise LaunchError(
            f"the folder for temporary files, {tempfile.tempdir}, takes no file of {len(content)} bytes ({error}), "
            f"which the training function and its value need; free space there, or set TMPDIR to another folder"
        ) from error
    return file


def append(file: IO[bytes], content: bytes) -> None:
    """Writes to a file without its buffer, because closing a file on a full disk would try to flush it again."""
    view = memoryview(content)
    while view:
        view = view[os.write(file.fileno(), view) :]


class RankProcess:
    """One rank, its keeper, and the pipes to both."""

    def __init__(self, spec: RankSpec, emit: Callable[[RankEvent], None]) -> None:
        self.rank = spec.rank
        self.pid: int | None = None
        self.left_at: float | None = None
        self.keeper_gone = False
        self.ended = False
        self._emit = emit
        self._ended: dict[str, Any] | None = None
        self._partial = {"stdout": bytearray(), "stderr": bytearray(), "status": bytearray()}
        self._frames = FrameReader()
        self._garbled = False
        self._unsent = bytearray()
        self.line, theirs = socket.socketpair()
        self.line.setblocking(False)
        out_read, out_write = _pipe()
        err_read, err_write = _pipe()
        source = temporary_file(inspect.getsource(keeper).encode())
        source.seek(0)
        rank_argument = {
            "line": theirs.fileno(),
            "payload": spec.payload.fileno(),
            "value": spec.value.fileno(),
            "preload": list(spec.preload),
            "path": _python_path(),
        }
        keep = [theirs.fileno(), spec.payload.fileno(), spec.value.fileno()]
        specification = {
            "argv": [
                sys.executable,
                "-c",
                _RANK_MAIN,
                json.dumps(rank_argument),
                f"lakelens-rank={spec.rank}",
                spec.title,
            ],
            "stdout": out_write.fileno(),
            "stderr": err_write.fileno(),
            "keep": keep,
            "parent": os.getpid(),
            "grace_s": SOFT_END_S,
        }
        try:
            self.keeper = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", "-c", _KEEPER_MAIN, json.dumps(specification)),
                    *(str(source.fileno()), f"lakelens-keeper={spec.rank}", spec.title),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=dict(spec.environment),
                pass_fds=[*keep, out_write.fileno(), err_write.fileno(), source.fileno()],
                start_new_session=True,
            )
        except OSError as error:
            for pipe in (out_read, err_read, self.line):
                pipe.close()
            raise LaunchError(f"rank {spec.rank} could not be started with {sys.executable}: {error}") from error
        finally:
            for pipe in (out_write, err_write, theirs, source):
                pipe.close()
        self.streams = {"stdout": out_read, "stderr": err_read}
        self.status = _fileno(self.keeper.stdout)

    # --- what arrives ---------------------------------------------------------------------------------------------

    def take_frames(self, data: bytes) -> None:
        """Turns bytes of the rank's line into events; after an invalid frame the rank is lost and no longer read."""
        if self._garbled:
            return
        try:
            for frame in self._frames.feed(data):
                self._take_frame(frame)
        except LaunchError as error:
            self._garbled = True
            self._emit(RankEvent(self.rank, "lost", {"reason": f"wrote into its line to the launcher: {error}"}))

    def _take_frame(self, frame: Frame) -> None:
        if frame.kind == Kind.MESSAGE:
            self._emit(RankEvent(self.rank, "message", {"text": frame.body.decode("utf-8", "replace")}))
        elif frame.kind in _FRAME_EVENTS:
            data = frame.json() if frame.body else {}
            event = checked_event(self.rank, _FRAME_EVENTS[Kind(frame.kind)], data)
            if frame.kind in (Kind.RETURNED, Kind.RAISED):
                self.left_at = time.monotonic()
            self._emit(event)
        else:
            raise LaunchError(f"a rank cannot send a frame of kind {frame.kind}")

    def take_output(self, stream: str, data: bytes) -> None:
        """Turns bytes of the rank's output into events, a line each; empty data is the end of the stream."""
        for line in self._lines(stream, data):
            self._emit(RankEvent(self.rank, "line", {"stream": stream, "text": line}))

    def take_status(self, data: bytes) -> None:
        """Turns the keeper's reports into events; empty data means that no process of the rank remains."""
        if not data:
            self.keeper_gone = True
        for line in self._lines("status", data):
            status = json.loads(line)
            if "pid" in status:
                self.pid = status["pid"]
                self._emit(RankEvent(self.rank, "started", {"pid": self.pid, "host": socket.gethostname()}))
            elif "stopped" in status:
                self._emit(RankEvent(self.rank, "stopped", {"signal": status["stopped"]}))
            elif "continued" in status:
                self._emit(RankEvent(self.rank, "continued"))
            elif "ended" in status:
                self._ended = status
                self.left_at = time.monotonic()

    def _lines(self, stream: str, data: bytes) -> list[str]:
        buffer = self._partial[stream]
        buffer += data
        *whole, rest = bytes(buffer).split(b"\n")
        if not data:
            whole, rest = [*whole, rest] if rest else whole, b""
        pieces = [piece for line in whole for piece in _pieces(line)]
        if len(rest) > MAX_LINE_BYTES:
            *more, rest = _pieces(rest)
            pieces += more
        buffer[:] = rest
        return [piece.decode("utf-8", "replace").rstrip("\r") for piece in pieces]

    def report_end(self) -> None:
        """Emits the end of the rank, after its last lines."""
        self.ended = True
        if self._ended is None:
            # The keeper itself was killed, and the rank by the kernel with it.
            code = self.keeper.poll()
            self._ended = {"exit_code": None, "signal": -code if code is not None and code < 0 else signal.SIGKILL}
        self._emit(RankEvent(self.rank, "ended", self._ended))

    # --- what is sent ---------------------------------------------------------------------------------------------

    def assign(self, assignment: dict[str, Any], key: str) -> None:
        """Sends the rank its place in the world and the job's secret."""
        self.send(Kind.ASSIGN, {**assignment, "job_key": key})

    def send(self, kind: Kind, body: bytes | dict[str, Any]) -> None:
        """Sends the rank a frame, without waiting for it to read: it may be stopped, or may never read."""
        self._unsent += pack(kind, body)
        self.flush()

    def flush(self) -> None:
        """Sends the rest of frames that the rank's line did not take at once."""
        try:
            while self._unsent:
                sent = self.line.send(self._unsent)
                del self._unsent[:sent]
        except BlockingIOError:
            return
        except OSError:
            self._unsent.clear()  # the rank has ended

    def command(self, letter: bytes) -> None:
        """Sends the keeper a command: `T` for SIGTERM, then SIGKILL; `K` for SIGKILL at once."""
        with contextlib.suppress(OSError):
            os.write(_fileno(self.keeper.stdin), letter)

    def destroy(self) -> None:
        """Kills keeper and rank from here if the keeper does not answer."""
        with contextlib.suppress(OSError):
            self.keeper.kill()
        if self.pid is not None:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Closes the pipes and reaps the keeper."""
        with contextlib.suppress(OSError):
            self.line.close()
        for stream in self.streams.values():
            stream.close()
        self.streams = {}
        for pipe in (self.keeper.stdin, self.keeper.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self.keeper.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.destroy()
            self.keeper.wait(timeout=5)


def _python_path() -> list[str]:
    """This process' path, without the JARs that Spark puts on it: Python would read their directories."""
    return [os.path.abspath(entry) for entry in sys.path if not entry.endswith(".jar")]  # noqa: PTH100 - '' is the working directory


def _pipe() -> tuple[IO[bytes], IO[bytes]]:
    """Makes a pipe whose ends close automatically if a start is interrupted."""
    reading, writing = os.pipe()
    return os.fdopen(reading, "rb", buffering=0), os.fdopen(writing, "wb", buffering=0)


def _pieces(line: bytes) -> list[bytes]:
    """Splits a line that is too long for one frame, between characters of UTF-8."""
    pieces = []
    while len(line) > MAX_LINE_BYTES:
        cut = MAX_LINE_BYTES
        while cut > MAX_LINE_BYTES - 3 and line[cut] & 0xC0 == 0x80:
            cut -= 1
        pieces.append(line[:cut])
        line = line[cut:]
    return [*pieces, line]


def _fileno(pipe: IO[bytes] | None) -> int:
    if pipe is None:
        raise LaunchError("the keeper was started without pipes")
    return pipe.fileno()
