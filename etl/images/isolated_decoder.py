"""Makes stored bytes of source files in a child process, so that a decoder that crashes or spins costs one image."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import resource
import select
import signal
import stat
import struct
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from PIL import Image

from ...error_reports import error_of, report_of
from ...errors import ImageError
from ...freed_memory import give_back, keep_freed_memory
from .codec import Decoded, decode_source
from .colours import encode_jpeg, encode_png, place_image
from .geometry import Placement, place
from .recipe import Limits, Recipe


@dataclass(frozen=True)
class EncodedImage:
    """What a row keeps of one source file."""

    image: bytes  # The stored bytes; for `raw_rgb` height x width x 3 bytes, row by row
    format: str  # `jpeg`, `png` or `raw_rgb`
    height: int  # Height of the stored image in pixels
    width: int  # Width of the stored image in pixels
    content_hash: str  # SHA-256 of the source file, in hexadecimal
    orientation: int  # EXIF orientation of the source
    placement: Placement  # Where the upright source lies in the stored image
    source_width: int  # Width of the upright source in pixels
    source_height: int  # Height of the upright source in pixels
    decoded_width: int  # Width that the decoder gave, smaller than the source's when it decoded at a fraction
    decoded_height: int  # The same of the height
    notes: tuple[str, ...] = ()  # What was repaired or left out, as `Decoded.notes`


def make_stored_image(data: bytes, recipe: Recipe, limits: Limits) -> EncodedImage:
    """Decodes, places and encodes one source file; `original` keeps its bytes if every decoder shows them alike."""
    if len(data) > limits.max_bytes:
        raise ImageError(
            "too_many_bytes", f"{len(data)} bytes are more than the {limits.max_bytes} that a file may have"
        )
    resize = recipe.applied_resize
    target_size = None if resize == "none" else recipe.size
    decoded = decode_source(data, target_size=target_size, max_pixels=limits.max_pixels, depth=recipe.depth)
    placement = place(resize, decoded.width, decoded.height, recipe.size)
    image = place_image(decoded.image, placement, resample=recipe.resample)
    stored, stored_format = _encode(image, decoded, data, recipe)
    return EncodedImage(
        image=stored,
        format=stored_format,
        height=image.height,
        width=image.width,
        content_hash=hashlib.sha256(data).hexdigest(),
        orientation=decoded.orientation,
        placement=placement,
        source_width=decoded.width,
        source_height=decoded.height,
        decoded_width=decoded.image.width,
        decoded_height=decoded.image.height,
        notes=decoded.notes,
    )


def _encode(image: Image.Image, decoded: Decoded, data: bytes, recipe: Recipe) -> tuple[bytes, str]:
    if recipe.store == "raw_rgb":
        return image.tobytes(), "raw_rgb"
    if recipe.store == "jpeg":
        return encode_jpeg(image, recipe.quality, recipe.subsampling), "jpeg"
    if decoded.is_plain:
        return data, decoded.file_format.lower()
    return encode_png(image), "png"


# Paths are small: some ahead keep the child busy while the parent packs what is done.
_PATHS_AHEAD = 8
_HEADER_LENGTH = struct.Struct("!I")
_SET_PARENT_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG


@dataclass(frozen=True)
class SourceImage:
    """What a child is to decode: a local file, or bytes that were already read."""

    path: bytes | None = None  # Local path as bytes, or None
    data: bytes | None = None  # The file's content, or None when the child reads `path`


class IsolatedDecoder:
    """Turns sources into stored images in a child process that may be killed; a context manager that ends it."""

    def __init__(self, recipe: Recipe, limits: Limits) -> None:
        self._recipe = recipe
        self._limits = limits
        self._pid: int | None = None
        self._connection: Connection[Any, Any] | None = None
        self._poll = select.poll()

    def __enter__(self) -> IsolatedDecoder:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_child()

    def decode_all(self, sources: Iterable[SourceImage]) -> Iterator[EncodedImage | ImageError]:
        """Yields, in order, the stored image of each source or the error that it ended in."""
        waiting: deque[SourceImage] = deque()
        for source in sources:
            # Bytes go one at a time: a large frame and a large reply in flight at once would block both ends.
            ahead = 0 if source.data is not None or (waiting and waiting[-1].data is not None) else _PATHS_AHEAD - 1
            while len(waiting) > ahead:
                yield self._receive_first(waiting)
            self._send(source)
            waiting.append(source)
        while waiting:
            yield self._receive_first(waiting)

    def _receive_first(self, waiting: deque[SourceImage]) -> EncodedImage | ImageError:
        try:
            result = self._receive()
        except ImageError as error:
            waiting.popleft()
            for source in waiting:
                self._send(source)
            return error
        waiting.popleft()
        return result

    def _send(self, source: SourceImage) -> None:
        connection = self._connection or self._start_child()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its death shows when the reply is read
            connection.send_bytes(b"P" + (source.path or b"") if source.data is None else b"D" + source.data)

    def _receive(self) -> EncodedImage | ImageError:
        connection = self._connection or self._start_child()
        try:
            if not self._poll.poll(1000 * self._limits.timeout_s):
                self._end_child()
                raise ImageError("timeout", f"not done after {self._limits.timeout_s:g} s")
            header, payload = _unpack(connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise ImageError("decoder_crashed", f"the decoder's process died ({self._end_child()})") from error
        if "refused" in header:
            refused = error_of(header["refused"])
            return refused if isinstance(refused, ImageError) else ImageError("decoder_crashed", str(refused))
        placement, notes = Placement(**header.pop("placement")), tuple(header.pop("notes"))
        return EncodedImage(image=payload, placement=placement, notes=notes, **header)

    def _start_child(self) -> Connection[Any, Any]:
        Image.init()  # imports the decoders here, once for all tasks; what a child imports goes with the child
        here, there = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        give_back()  # the child would hold a copy, and could use it beyond its limit
        pid = os.fork()
        if pid == 0:
            _child_main(parent, there, self._recipe, self._limits)
        there.close()
        self._pid, self._connection = pid, here
        self._poll.register(here.fileno(), select.POLLIN)
        return here

    def _end_child(self) -> str:
        """Kills the child if it is alive, and returns how it ended."""
        pid, connection = self._pid, self._connection
        self._pid = self._connection = None
        if connection is not None:
            self._poll.unregister(connection.fileno())
            connection.close()
        if pid is None:
            return "not started"
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended == 0:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _child_main(parent: int, connection: Connection[Any, Any], recipe: Recipe, limits: Limits) -> None:
    """The child's whole life; never returns."""
    code = 1
    try:
        _bound_child(parent, connection.fileno(), limits)
        keep_freed_memory()
        _serve(connection, recipe, limits)
        code = 0
    except (EOFError, OSError):
        code = 0  # the parent has gone
    finally:
        os._exit(code)


def _bound_child(parent: int, keep: int, limits: Limits) -> None:
    """Binds the child to its parent's life and to its memory, and closes the sockets of the parent."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:  # it went before it was listened for
            os._exit(0)
        held = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + int(limits.memory_bytes),) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for handled in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGHUP):
        signal.signal(handled, signal.SIG_DFL)
    os.closerange(3, keep)
    os.closerange(keep + 1, os.sysconf("SC_OPEN_MAX"))


def _serve(connection: Connection[Any, Any], recipe: Recipe, limits: Limits) -> None:
    while True:
        request = connection.recv_bytes()
        try:
            data = request[1:] if request[:1] == b"D" else read_file(request[1:], limits.max_bytes)
            stored = make_stored_image(data, recipe, limits)
        except ImageError as error:
            refused = error
        except MemoryError:
            refused = ImageError("out_of_memory", f"more than {limits.memory_bytes} bytes")
        except Exception as error:  # noqa: BLE001  as good as a crash, and its words are worth more than an exit code
            refused = ImageError("decoder_crashed", f"{type(error).__name__}: {error}")
        else:
            header = asdict(stored)
            payload = header.pop("image")
            connection.send_bytes(_packed(header, payload))
            continue
        connection.send_bytes(_packed({"refused": report_of(refused)}))


def _packed(header: Mapping[str, Any], payload: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return _HEADER_LENGTH.pack(len(text)) + text + payload


def _unpack(frame: bytes) -> tuple[dict[str, Any], bytes]:
    start = _HEADER_LENGTH.size
    (length,) = _HEADER_LENGTH.unpack_from(frame)
    return json.loads(frame[start : start + length]), frame[start + length :]


def read_file(path: bytes, max_bytes: int) -> bytes:
    """Reads a regular file of at most `max_bytes` bytes."""
    try:
        # A pipe would make a plain open wait for its writer.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ImageError("unreadable", "not a regular file")
            if status.st_size > max_bytes:
                raise ImageError(
                    "too_many_bytes", f"{status.st_size} bytes are more than the {max_bytes} that a file may have"
                )
            return file.read()
    except OSError as error:
        raise ImageError("unreadable", f"{type(error).__name__}: {error.strerror or error}") from error
