"""Decoded images of a version in a memory-mapped file on local disk: decoded once, shared by ranks, trials and runs.

An entry is a folder `<cache>/<key>` with `images.npy`, uint8 [rows, height, width, 3] in stored order, `sizes.npy`,
int32 [rows, 2], the height and width of each image before it was resized (0 if unknown), `rows.npy`, int64 [rows], the
number of each row among all stored rows of the plan's files, and `entry.json`. It is written under another name and
renamed when it is complete. One process writes an entry; the others wait for it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL

from ...errors import ImageError, InvalidArgumentError, LakelensError
from ...etl.images.stored_image import CHANNELS, PixelDecoder, StoredImage
from ..rank import process_context
from .image_plan import ImagePlan, known_size
from .plan.epoch_order import GlobalOrder, IntArray, RankBatches
from .plan.feed_plan import FeedPlan, Position, Shard
from .rank_batches import BatchReader

logger = logging.getLogger(__name__)

# Counted up when the same plan and decoder come to mean another entry.
_FORMAT = 3
_BATCH_ROWS = 256
_SECONDS_BETWEEN_REPORTS = 10.0
# Only folders of such names are removed: a user may name a folder that holds other things.
_KEY = "[0-9a-f]" * 32
_DAMAGED = (ValueError, NotADirectoryError, IsADirectoryError, EOFError, LookupError, TypeError, AttributeError)
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class DecodedImages:
    """A complete entry of the cache."""

    images: npt.NDArray[np.uint8]  # uint8 [rows, height * width * 3], mapped into memory, in stored order
    sizes: npt.NDArray[np.int32]  # int32 [rows, 2], height and width of each image before it was resized; 0 if unknown
    # int64 [rows], sorted, the number of each row among all stored rows of the plan's files
    rows: npt.NDArray[np.int64]
    bad: dict[int, str]  # Why a row does not decode, by the index of such rows in `images`
    first_rows: npt.NDArray[np.int64]  # int64 [files], the number of each file's first row among all stored rows

    @classmethod
    def load(cls, folder: Path, wanted: ImagePlan) -> DecodedImages | None:
        """Maps the entry of a plan into memory, and notes that it was used; None if it is not there, or damaged."""
        described, rows = folder / "entry.json", wanted.plan.rows
        try:
            with suppress(PermissionError):  # another user's entry
                os.utime(described)
            listed = json.loads(described.read_text(encoding="utf-8"))["bad"].items()
            bad = {int(row): str(reason) for row, reason in listed}
            images = _load(folder / "images.npy", (rows, *wanted.size, CHANNELS), np.uint8, mmap_mode="r")
            sizes = _load(folder / "sizes.npy", (rows, 2), np.int32)
            numbers = _load(folder / "rows.npy", (rows,), np.int64)
        except FileNotFoundError:
            return None
        except _DAMAGED as error:
            logger.warning("the entry %s of the cache is damaged: %s", folder, error)
            return None
        return cls(images.reshape(rows, -1), sizes, numbers, bad, _first_rows(wanted.plan))

    def indices(self, origins: IntArray) -> IntArray:
        """Finds rows in `images`: int64 [rows], of int64 [rows, 2], file index and row of the file."""
        found: IntArray = np.searchsorted(self.rows, self.first_rows[origins[:, 0]] + origins[:, 1])
        return found

    def stored(self, indices: IntArray) -> list[StoredImage]:
        """Returns the sizes of images before they were resized, without their bytes."""
        return [StoredImage(None, None, *size) for size in self.sizes[indices].tolist()]

    def undecodable(self, indices: IntArray) -> dict[int, str]:
        """Returns why rows do not decode, by their index in `indices`."""
        if not self.bad:
            return {}
        return {i: self.bad[index] for i, index in enumerate(indices.tolist()) if index in self.bad}

    def copy(self, indices: IntArray, pixels: npt.NDArray[Any]) -> None:
        """Copies images into `pixels`: [rows, height, width, 3] of any type."""
        flat = pixels.reshape(len(indices), -1)
        if flat.dtype == np.uint8:
            np.take(self.images, indices, axis=0, out=flat, mode="clip")  # "raise" would copy twice
        else:
            flat[...] = self.images[indices]


def decoded_images(wanted: ImagePlan) -> DecodedImages:
    """Opens the entry of a plan's images; the first process that asks decodes them."""
    cache, key = folder_of(wanted.output.cache), _key(wanted)
    try:
        found = DecodedImages.load(cache / key, wanted)  # needs no lock, which another user may own
        if found is not None:
            return found
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / f"{key}.lock"):
            found = DecodedImages.load(cache / key, wanted)
            if found is not None:
                return found
            _remove(cache / key)
            return _write(wanted, cache, key)
    except LakelensError:  # of the table or its store, which can be an OSError too
        raise
    except OSError as error:
        raise InvalidArgumentError(
            f"cache: {cache} cannot be used: {error}; name a folder on a local disk that this user may write, or train "
            "without cache"
        ) from error


def folder_of(cache: bool | str | Path) -> Path:
    """Gives the folder of the cache: True is `~/.cache/lakelens/decoded`, below XDG_CACHE_HOME where that is set."""
    if not isinstance(cache, bool):
        return Path(cache).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lakelens" / "decoded"


def _key(wanted: ImagePlan) -> str:
    """Names an entry by everything that its pixels depend on."""
    plan, decoder = wanted.plan, wanted.decoder
    described: list[Any] = [
        _FORMAT,
        plan.snapshot.table_id,
        [plan.stored_name(column) for column in plan.columns.of_image(plan.image_column)],
        [(plan.stored_name(row_filter.column), sorted(map(repr, row_filter.values))) for row_filter in plan.filters],
        wanted.size,
        (decoder.resize, decoder.letterbox, *_decoder_versions(decoder.simplejpeg)),
    ]
    digest = hashlib.sha256(repr(described).encode())
    for file, path in enumerate(plan.files.paths):
        digest.update(f"{path}\0{plan.files.sizes[file]}\0".encode("utf-8", "surrogateescape"))
        digest.update(plan.files.deleted_rows(file).tobytes())
    return digest.hexdigest()[:32]


def _first_rows(plan: FeedPlan) -> IntArray:
    """Numbers the first row of each file among all stored rows: int64 [files]."""
    first_rows: IntArray = np.cumsum(plan.stored_rows) - plan.stored_rows
    return first_rows


def _decoder_versions(by_simplejpeg: bool) -> tuple[str, ...]:
    """Gives the versions of what decodes: Pillow, and simplejpeg where it decodes JPEG."""
    if not by_simplejpeg:
        return (PIL.__version__,)
    import simplejpeg

    return PIL.__version__, simplejpeg.__version__


def _load(path: Path, shape: tuple[int, ...], kind: type[np.generic], **how: Any) -> npt.NDArray[Any]:
    """Loads an array of an entry, of the shape and type that it was written with."""
    found = np.asarray(np.load(path, allow_pickle=False, **how))  # views of a memmap cost microseconds each
    if found.shape != shape or found.dtype != kind:
        raise ValueError(f"{path.name} is {found.dtype} {list(found.shape)}, expected is {list(shape)}")
    return found


@contextmanager
def _locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Holds a lock that the kernel releases when the process ends, however it ends."""
    file = os.open(path, os.O_RDONLY | os.O_CREAT, 0o666)  # read-only: another user may own the file
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(file)


def _write(wanted: ImagePlan, cache: Path, key: str) -> DecodedImages:
    """Decodes all rows of a plan into a new entry, whose lock the caller holds."""
    plan = wanted.plan
    shape = (plan.rows, *wanted.size, CHANNELS)
    needed = int(np.prod(shape))
    folder = cache / f".{key}.{uuid.uuid4().hex}"
    started = time.monotonic()
    logger.info("decoding the %d images of %s into %s: %d MiB", plan.rows, plan.name, cache / key, needed >> 20)
    try:
        with _locked(cache / "room.lock"):
            _make_room(cache, key, needed, wanted.output.cache_bytes)
            folder.mkdir()
            images = _allocate(folder / "images.npy", shape, np.uint8)
            sizes = _allocate(folder / "sizes.npy", (plan.rows, 2), np.int32)
            rows = _allocate(folder / "rows.npy", (plan.rows,), np.int64)
        bad = _decode_all(wanted, images, sizes, rows)
        for array in (images, sizes, rows):
            array.flush()
        entry = {"table": plan.location, "version": plan.snapshot.version, "rows": plan.rows, "bad": bad}
        with (folder / "entry.json").open("w", encoding="utf-8") as file:
            json.dump(entry, file)
            file.flush()
            os.fsync(file.fileno())
        written = DecodedImages.load(folder, wanted)  # before it has the name by which another process may remove it
        if written is None:
            raise OSError(f"{folder} was removed or changed while it was written")
        folder.rename(cache / key)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in _DISK_FULL:
            raise _disk_full(cache, needed) from error
        raise
    logger.info("decoded the images of %s in %.0f s: %d MiB", plan.name, time.monotonic() - started, needed >> 20)
    return written


def _allocate(path: Path, shape: tuple[int, ...], kind: type[np.generic]) -> np.memmap[Any, Any]:
    """Makes a file of zeros that is mapped into memory, with all of its bytes on the disk."""
    numpy_format: Any = np.lib.format  # NumPy 1 has no types there
    array: np.memmap[Any, Any] = numpy_format.open_memmap(path, mode="w+", dtype=kind, shape=shape)
    if hasattr(os, "posix_fallocate"):  # where the disk is full, a write to a hole of a mapped file kills the process
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def _decode_all(
    wanted: ImagePlan, images: npt.NDArray[np.uint8], sizes: npt.NDArray[np.int32], numbers: IntArray
) -> dict[int, str]:
    """Decodes the rows in stored order; returns why rows do not decode, by row."""
    plan, first_rows = wanted.plan, _first_rows(wanted.plan)
    columns = plan.columns.of_image(plan.image_column)
    in_stored_order = replace(plan, order=GlobalOrder(plan.files.rows, lanes=1, seed=0, shuffle=False))
    shard = Shard(in_stored_order, RankBatches(plan.rows, _BATCH_ROWS), Position(), 1, wanted.output)
    bad: dict[int, str] = {}
    # The ranks of other hosts may wait for this one: a message to the driver counts as progress.
    report = process_context.log_to_driver if process_context.current().launched else logger.info
    first, reported = 0, time.monotonic()
    with (
        BatchReader(shard, columns) as reader,
        ThreadPoolExecutor(wanted.output.threads, thread_name_prefix="lakelens-decode") as pool,
    ):
        for batch in reader:
            stored, origins = batch.images(plan.columns, plan.image_column, columns), batch.origins()
            rows = range(first, first + len(stored))
            numbers[rows.start : rows.stop] = first_rows[origins[:, 0]] + origins[:, 1]
            reasons = pool.map(partial(_decode, wanted.decoder), stored, images[rows.start :], sizes[rows.start :])
            for row, origin, reason in zip(rows, origins.tolist(), reasons, strict=True):
                if reason is None:
                    continue
                if wanted.output.bad_rows == "error":
                    wanted.refuse(origin, wanted.undecodable(reason))
                bad[row] = reason
            first = rows.stop
            if time.monotonic() - reported > _SECONDS_BETWEEN_REPORTS:
                reported = time.monotonic()
                report(f"decoded {first} of {plan.rows} images of {plan.name}")
    return bad


def _decode(
    decoder: PixelDecoder, image: StoredImage, pixels: npt.NDArray[np.uint8], size: npt.NDArray[np.int32]
) -> str | None:
    """Decodes one image; returns why it does not decode."""
    with suppress(ImageError):
        size[:] = known_size(image)
    try:
        decoder.decode(image, pixels)
    except ImageError as error:
        pixels[...] = 0
        return str(error)
    return None


def _make_room(cache: Path, key: str, needed: int, limit: int) -> None:
    """Removes what interrupted writers left, then the entries used longest ago, under the locks of folder and `key`."""
    if needed > limit:
        raise InvalidArgumentError(
            f"cache: the decoded images take {needed} bytes, cache_bytes={limit}; raise it, give a smaller image_size, "
            "or train without cache"
        )
    held = in_progress = _remove_interrupted(cache, key)
    used: list[tuple[float, int, Path]] = []
    for entry in cache.glob(_KEY):
        with suppress(OSError):  # removed by hand meanwhile, or closed to this user
            used.append((_used_at(entry), _bytes_of(entry), entry))
    held += sum(size for _, size, _ in used)
    for _, size, oldest in sorted(used):
        if held + needed <= limit:
            break
        with suppress(OSError):  # of another user
            _remove(oldest)
            logger.info("removed %s from the cache: %d MiB, used longest ago", oldest, size >> 20)
            held -= size
    if held + needed > limit:
        raise InvalidArgumentError(
            f"cache: the decoded images take {needed} bytes, cache_bytes={limit}, and {held} bytes of {cache} cannot "
            f"be removed, {in_progress} of them because other processes write them now; raise cache_bytes, or try later"
        )
    if needed > shutil.disk_usage(cache).free:
        raise _disk_full(cache, needed)


def _remove(entry: Path) -> None:
    """Removes an entry; a process that has mapped it keeps its pages."""
    gone = entry.with_name(f".{entry.name}.{uuid.uuid4().hex}")
    with suppress(FileNotFoundError):
        entry.rename(gone)
        if gone.is_dir():
            shutil.rmtree(gone, ignore_errors=True)
        else:
            gone.unlink()


def _remove_interrupted(cache: Path, key: str) -> int:
    """Removes the folders of writers that were interrupted; returns the bytes of those that are written now."""
    written = 0
    for folder in cache.glob(f".{_KEY}.{_KEY}"):
        writer = folder.name.split(".")[1]
        with suppress(OSError):  # its writer is at work, or another user
            with nullcontext() if writer == key else _locked(cache / f"{writer}.lock", wait=False):
                shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            written += _bytes_of(folder)
    return written


def _disk_full(cache: Path, needed: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"cache: the decoded images take {needed} bytes, the disk of {cache} has {shutil.disk_usage(cache).free} free; "
        "name another folder, or train without cache"
    )


def _used_at(entry: Path) -> float:
    """Returns when an entry was used, in seconds since 1970; 0 if it is damaged."""
    try:
        return (entry / "entry.json").stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _bytes_of(entry: Path) -> int:
    return sum(file.stat().st_size for file in entry.iterdir())
