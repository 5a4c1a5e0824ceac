"""Decoded images of a version in a memory-mapped file on local disk: decoded once, shared by ranks, trials and runs.

An entry is a folder `<cache>/<key>` with `images.npy`, uint8 [rows, height, width, 3] in stored order, `sizes.npy`,
int32 [rows, 2], the height and width of each image before it was resized (0 if it does not tell), and `entry.json`.
It is written under another name and renamed when it is complete. One process writes an entry; the others wait for it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...errors import ImageError, InvalidArgumentError
from ...etl.images.stored_image import CHANNELS, StoredImage, size_of
from .image_rows import image_columns_of, images_of
from .plan.epoch_order import GlobalOrder, RankBatches
from .plan.feed_plan import FeedPlan
from .plan.position import Start
from .rank_batches import BatchReader

if TYPE_CHECKING:
    from .decode import Decoding
    from .feed import DeltaFeed
    from .read_options import ImageOutput

logger = logging.getLogger(__name__)

# Counted up when the same plan and decoder come to mean another entry.
_FORMAT = 1
_BATCH_ROWS = 256
_SECONDS_BETWEEN_REPORTS = 10.0


@dataclass(frozen=True)
class DecodedImages:
    """A complete entry of the cache.

    Attributes:
        images: uint8 [rows, height * width * 3], mapped into memory, in stored order.
        sizes: int32 [rows, 2], height and width of each image before it was resized; 0 if it does not tell.
        bad: Why a row does not decode, by the numbers of such rows.
    """

    images: npt.NDArray[np.uint8]
    sizes: npt.NDArray[np.int32]
    bad: dict[int, str]

    @classmethod
    def load(cls, folder: Path) -> DecodedImages:
        """Maps an entry into memory, and notes that it was used.

        Raises:
            FileNotFoundError: If there is no complete entry.
        """
        described = folder / "entry.json"
        os.utime(described)
        bad = {int(row): reason for row, reason in json.loads(described.read_text(encoding="utf-8"))["bad"].items()}
        images = np.asarray(np.load(folder / "images.npy", mmap_mode="r"))  # views of a memmap cost microseconds each
        return cls(images.reshape(len(images), -1), np.load(folder / "sizes.npy"), bad)


def decoded_images(feed: DeltaFeed, decoding: Decoding, output: ImageOutput) -> DecodedImages:
    """Opens the entry of a feed's images; the first process that asks decodes them.

    Args:
        feed: The feed.
        decoding: How its rows are decoded.
        output: The options of the caller: `cache`, `cache_bytes`, and those of reading.

    Raises:
        InvalidArgumentError: If the entry is larger than `cache_bytes` or than the free space of the disk.
        BadRowError: If a row does not decode and the policy is `error`.
        FeedError: Its subclasses, if the table cannot be read.
    """
    cache = folder_of(output.cache)
    cache.mkdir(parents=True, exist_ok=True)
    key = _key(feed, decoding)
    with _locked(cache / f"{key}.lock"):
        try:
            return DecodedImages.load(cache / key)
        except FileNotFoundError:
            _write(feed, decoding, output, cache, key)
            return DecodedImages.load(cache / key)


def folder_of(cache: bool | str | Path) -> Path:
    """Gives the folder of the cache: True is `~/.cache/lakelens/decoded`, below XDG_CACHE_HOME where that is set."""
    if not isinstance(cache, bool):
        return Path(cache).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lakelens" / "decoded"


def stored_order(plan: FeedPlan) -> FeedPlan:
    """Gives the plan of the same rows in stored order."""
    return replace(plan, order=GlobalOrder(plan.files.rows, lanes=1, seed=0, shuffle=False))


def _key(feed: DeltaFeed, decoding: Decoding) -> str:
    """Names an entry by everything that its pixels depend on."""
    plan, decoder = feed.plan, decoding.decoder
    described: list[Any] = [
        _FORMAT,
        plan.table_id,
        feed.image_column,
        feed.format_column,
        [(row_filter.column, sorted(map(repr, row_filter.values))) for row_filter in plan.filters],
        decoding.size,
        (decoder.resize, decoder.fast, decoder.simplejpeg),
    ]
    digest = hashlib.sha256(repr(described).encode())
    for file, path in enumerate(plan.files.paths):
        digest.update(f"{path}\0{plan.files.sizes[file]}\0".encode("utf-8", "surrogateescape"))
        digest.update(plan.files.deleted_rows(file).tobytes())
    return digest.hexdigest()[:32]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds a lock that the kernel releases when the process ends, however it ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(feed: DeltaFeed, decoding: Decoding, output: ImageOutput, cache: Path, key: str) -> None:
    """Decodes all rows of a feed into a new entry; its lock is held."""
    shape = (feed.rows, *decoding.size, CHANNELS)
    needed = int(np.prod(shape))
    for left in cache.glob(f".{key}.*"):  # of a writer that was interrupted
        shutil.rmtree(left, ignore_errors=True)
    _make_room(cache, needed, output.cache_bytes)
    folder = cache / f".{key}.{uuid.uuid4().hex}"
    folder.mkdir()
    name = f"{feed.location}@{feed.version}"
    started = time.monotonic()
    logger.info("decoding the %d images of %s into %s: %d MiB", feed.rows, name, cache / key, needed >> 20)
    try:
        images = np.lib.format.open_memmap(  # type: ignore[no-untyped-call]
            folder / "images.npy", mode="w+", dtype=np.uint8, shape=shape
        )
        sizes = np.zeros((feed.rows, 2), dtype=np.int32)
        bad = _decode_all(feed, decoding, output, images, sizes)
        images.flush()
        np.save(folder / "sizes.npy", sizes)
        entry = {"table": feed.location, "version": feed.version, "split": feed.split, "rows": feed.rows, "bad": bad}
        with (folder / "entry.json").open("w", encoding="utf-8") as file:
            json.dump(entry, file)
            file.flush()
            os.fsync(file.fileno())
        folder.rename(cache / key)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    logger.info("decoded the images of %s in %.0f s: %d MiB", name, time.monotonic() - started, needed >> 20)


def _decode_all(
    feed: DeltaFeed,
    decoding: Decoding,
    output: ImageOutput,
    images: npt.NDArray[np.uint8],
    sizes: npt.NDArray[np.int32],
) -> dict[int, str]:
    """Decodes the rows in stored order; returns why rows do not decode, by row."""
    columns = image_columns_of(feed, feed.image_column)
    batches = RankBatches(feed.rows, _BATCH_ROWS)
    bad: dict[int, str] = {}
    first, reported = 0, time.monotonic()
    with (
        BatchReader(
            stored_order(feed.plan),
            columns,
            batches,
            start=Start(),
            threads=output.reader_threads,
            timeout_s=output.read_timeout_s,
        ) as reader,
        ThreadPoolExecutor(output.threads, thread_name_prefix="lakelens-decode") as pool,
    ):
        for batch in reader:
            stored, origins = images_of(feed, batch, feed.image_column, columns), batch.origins()
            rows = range(first, first + len(stored))
            reasons = pool.map(_decode, [decoding] * len(stored), stored, images[rows.start :], sizes[rows.start :])
            for row, origin, reason in zip(rows, origins.tolist(), reasons, strict=True):
                if reason is None:
                    continue
                if decoding.policy == "error":
                    decoding.refuse(origin, reason)
                bad[row] = reason
            first = rows.stop
            if time.monotonic() - reported > _SECONDS_BETWEEN_REPORTS:
                reported = time.monotonic()
                logger.info("decoded %d of %d images of %s@%d", first, feed.rows, feed.location, feed.version)
    return bad


def _decode(
    decoding: Decoding, image: StoredImage, pixels: npt.NDArray[np.uint8], size: npt.NDArray[np.int32]
) -> str | None:
    """Decodes one image; returns why it does not decode."""
    with suppress(ImageError):
        size[:] = (image.height, image.width) if image.height and image.width else size_of(image)
    try:
        decoding.decoder.decode(image, pixels)
    except ImageError as error:
        pixels[...] = 0
        return str(error)
    return None


def _make_room(cache: Path, needed: int, limit: int) -> None:
    """Removes the entries that were used longest ago until one of `needed` bytes fits.

    Raises:
        InvalidArgumentError: If it does not fit into an empty cache.
    """
    if needed > limit:
        raise InvalidArgumentError(
            f"cache: the decoded images take {needed} bytes, cache_bytes={limit}; raise it, give a smaller image_size, "
            "or train without cache"
        )
    entries = sorted(_entries(cache), key=lambda entry: (entry / "entry.json").stat().st_mtime)
    held = sum(_bytes_of(entry) for entry in entries)
    while entries and held + needed > limit:
        oldest = entries.pop(0)
        size = _bytes_of(oldest)
        gone = oldest.with_name(f".{oldest.name}.{uuid.uuid4().hex}")
        oldest.rename(gone)  # a process that has mapped it keeps its pages
        shutil.rmtree(gone, ignore_errors=True)
        held -= size
        logger.info("removed %s from the cache: %d MiB, used longest ago", oldest, size >> 20)
    free = shutil.disk_usage(cache).free
    if needed > free:
        raise InvalidArgumentError(
            f"cache: the decoded images take {needed} bytes, the disk of {cache} has {free} free; name another folder, "
            "or train without cache"
        )


def _entries(cache: Path) -> Sequence[Path]:
    return [described.parent for described in cache.glob("[!.]*/entry.json")]


def _bytes_of(entry: Path) -> int:
    return sum(file.stat().st_size for file in entry.iterdir())
