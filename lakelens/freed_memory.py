"""Keeps freed memory in the process, for the processes that decode, train and predict.

glibc gives the memory of large tensors and images back to the kernel when they are freed. The next step takes it again,
page by page, and the kernel clears each page. Source of the parameters: mallopt(3).
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple


class _Parameter(NamedTuple):
    number: int  # In <malloc.h>
    value: int
    settings: tuple[str, ...]  # The user's settings that it would override, by the names of glibc's tunables


_PARAMETERS = (
    # M_ARENA_MAX: a heap of another arena has 64 MiB at most, and goes when it is empty.
    _Parameter(-8, 1, ("arena_max",)),
    # M_MMAP_MAX: a block with its own mapping is unmapped when it is freed.
    _Parameter(-4, 0, ("mmap_max", "mmap_threshold")),
    _Parameter(-1, -1, ("trim_threshold",)),  # M_TRIM_THRESHOLD: -1 never trims the heap
)
_VARIABLES = {
    "MALLOC_ARENA_MAX": "arena_max",  # YARN limits the arenas of its containers, whose heaps alone are given back
    "MALLOC_MMAP_MAX_": "mmap_max",
    "MALLOC_MMAP_THRESHOLD_": "mmap_threshold",
    "MALLOC_TRIM_THRESHOLD_": "trim_threshold",
}

_was_called = False


def keep_freed_memory() -> bool:
    """Lets this process keep the memory that it frees, for its next step; its size stays at its peak.

    lakelens calls it in ranks, in the processes that decode the images of an ingest, and in Spark's Python workers that
    predict. Call it in a process of your own, such as a notebook that reads a `DeltaFeed`, before TensorFlow or PyTorch
    is imported. Settings of yours (`MALLOC_*`, `glibc.malloc.*` in `GLIBC_TUNABLES`) stay as they are. An allocator
    that is loaded instead of glibc's is not noticed.

    Returns:
        Whether the process keeps freed memory. False with another C library than glibc, or if settings of
        yours give it back.

    Examples:
        >>> lakelens.keep_freed_memory() in (True, False)
        True
    """
    global _was_called
    libc = _glibc()
    if libc is None:
        return False
    _was_called = True
    given = {name for names in settings_of(os.environ).values() for name in names}
    results = [libc.mallopt(one.number, one.value) for one in _PARAMETERS if not given.intersection(one.settings)]
    return all(results) and why_not_kept() is None


def keep_again() -> None:
    """Repeats `keep_freed_memory` after other code has set the allocator, if this process has called it."""
    if _was_called:
        keep_freed_memory()


def give_back() -> None:
    """Gives the freed memory that this process keeps back to the kernel, where its size is about to be compared."""
    if (libc := _glibc()) is not None:
        libc.malloc_trim(0)


def why_not_kept(environment: Mapping[str, str] = os.environ) -> str | None:
    """Returns why a process with this environment gives freed memory back; None if it can keep it."""
    if _glibc() is None:
        return "the C library is not glibc"
    found = (name for name, settings in settings_of(environment).items() if settings - {"arena_max"})
    name = next(found, None)
    return None if name is None else f"{name} is set"


def settings_of(environment: Mapping[str, str]) -> dict[str, set[str]]:
    """Names the allocator's settings in an environment, by variable."""
    tunables = set(re.findall(r"glibc\.malloc\.(\w+)=", environment.get("GLIBC_TUNABLES", "")))
    known = tunables & set(_VARIABLES.values())
    found = {name: {setting} for name, setting in _VARIABLES.items() if name in environment}
    return {**found, **({"GLIBC_TUNABLES": known} if known else {})}


def _glibc() -> Any:
    try:
        libc = ctypes.CDLL(None)
    except (OSError, TypeError):  # a static Python, Windows
        return None
    return libc if hasattr(libc, "gnu_get_libc_version") else None  # musl has a `mallopt` that does nothing, or none
