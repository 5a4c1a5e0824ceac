"""What a caller may ask of a feed's datasets, checked before anything is read. `DeltaFeed.as_dataset` describes it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from ...errors import InvalidArgumentError
from ...options import whole_number

Preprocess = Callable[..., Any]

DEFAULT_CACHE_BYTES = 64 << 30
DEFAULT_BOX_LIMIT = 200
DTYPES = ("float32", "uint8")
BAD_ROW_POLICIES = ("error", "skip")


class ReadOptions(TypedDict, total=False):
    """Keywords of `Reading`."""

    start: Mapping[str, Any] | None
    replicas: int
    reader_threads: int
    read_timeout_s: float
    prefetch: int


class ImageOptions(ReadOptions, total=False):
    """Keywords of `ImageOutput`."""

    image_size: int | Sequence[int] | None
    preprocess: Preprocess | None
    dtype: str
    box_classes: int | None
    box_limit: int
    letterbox: bool
    seeded: bool
    bad_rows: str
    decode_threads: int | None
    cache: bool | str | Path
    cache_bytes: int


class ColumnOptions(ReadOptions, total=False):
    """Keywords of `ColumnOutput`."""

    columns: Sequence[str] | None
    fill: Mapping[str, Any] | None


class ReaderOptions(TypedDict, total=False):
    """Keywords of `ReaderOutput`."""

    reader_threads: int
    read_timeout_s: float
    batch_size: int | None
    drop_last: bool
    fill: Mapping[str, Any] | None
    workers_count: int | None


class ConverterOptions(TypedDict, total=False):
    """Keywords of a converter's datasets and loaders, which are arguments of Petastorm's reader and of ours."""

    schema_fields: Sequence[Any] | None
    cur_shard: int | None
    shard_count: int | None
    shuffle_row_groups: bool
    seed: int | None
    transform_spec: Any
    drop_last: bool
    fill: Mapping[str, Any] | None
    reader_threads: int
    read_timeout_s: float


@dataclass(frozen=True)
class Reading:
    """How rows are read, whatever becomes of them."""

    start: Mapping[str, Any] | None = None
    replicas: int = 1
    reader_threads: int = 4
    read_timeout_s: float = 45.0
    prefetch: int = 2

    def __post_init__(self) -> None:
        for name, least in (("reader_threads", 1), ("prefetch", 0)):
            whole_number(name, getattr(self, name), least)
        timeout_s = self.read_timeout_s
        if not isinstance(timeout_s, (int, float, np.number)) or timeout_s <= 0:
            raise InvalidArgumentError(f"read_timeout_s={timeout_s!r}: give the seconds that a read may take")


@dataclass(frozen=True)
class ImageOutput(Reading):
    """How rows become images."""

    image_size: int | Sequence[int] | None = None
    preprocess: Preprocess | None = None
    dtype: str = "float32"
    box_classes: int | None = None
    box_limit: int = DEFAULT_BOX_LIMIT
    letterbox: bool = False
    seeded: bool = False
    bad_rows: str = "error"
    decode_threads: int | None = None
    cache: bool | str | Path = False
    cache_bytes: int = DEFAULT_CACHE_BYTES

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in (("dtype", DTYPES), ("bad_rows", BAD_ROW_POLICIES)):
            if getattr(self, name) not in known:
                raise InvalidArgumentError(f"{name}={getattr(self, name)!r}: it is one of {', '.join(known)}")
        for name in ("box_classes", "box_limit", "decode_threads"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), 1)
        if not isinstance(self.cache, (bool, str, Path)):
            raise InvalidArgumentError(f"cache={self.cache!r}: give True, or a folder on a local disk")
        whole_number("cache_bytes", self.cache_bytes, 1)
        if self.image_size is not None:
            image_size_of(self.image_size)

    @property
    def threads(self) -> int:
        """Threads that decode."""
        return self.decode_threads or cores_of_process()


@dataclass(frozen=True)
class ColumnOutput(Reading):
    """Which columns come out as they are."""

    columns: Sequence[str] | None = None
    fill: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class ReaderOutput(Reading):
    """What Petastorm's users ask of a reader."""

    columns: Sequence[Any] | None = None
    epochs: int | None = 1
    transform_spec: Any = None
    batch_size: int | None = None
    drop_last: bool = False
    fill: Mapping[str, Any] | None = None
    workers_count: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (
            ("num_epochs", self.epochs),
            *((n, getattr(self, n)) for n in ("batch_size", "workers_count")),
        ):
            if value is not None:
                whole_number(name, value, 1)
        if self.drop_last and self.batch_size is None:
            raise InvalidArgumentError("drop_last=True drops batches that are not whole: give batch_size too")

    @property
    def threads(self) -> int:
        """Threads that decode and transform."""
        return self.workers_count or cores_of_process()


def image_size_of(image_size: int | Sequence[int]) -> tuple[int, int]:
    """Reads an image size given as one side, alone or in a list, or as (height, width), in pixels."""
    try:
        sides = tuple(image_size) if isinstance(image_size, Iterable) else (image_size,)
        height, width = sides * 2 if len(sides) == 1 else sides
        return whole_number("height", height, 1), whole_number("width", width, 1)
    except (InvalidArgumentError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"image_size={image_size!r}: give a number of pixels or (height, width), each >= 1"
        ) from error


def cores_of_process() -> int:
    """Counts the cores that fall to this process, of those that the ranks on this machine share."""
    ranks = os.environ.get("HOROVOD_LOCAL_SIZE") or os.environ.get("LOCAL_WORLD_SIZE") or "1"
    return max(1, available_cores() // int(ranks))


def available_cores() -> int:
    """Counts the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
