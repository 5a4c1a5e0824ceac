"""Keeps freed memory in the process, for the processes that decode, train and predict.

glibc gives the memory of large tensors and images back to the kernel when they are freed. The next step takes it again,
page by page, and the kernel clears each page: up to half of the processor time of training and scoring. Source of the
parameters: mallopt(3).
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Mapping
from typing import NamedTuple


class _Parameter(NamedTuple):
    number: int  # In <malloc.h>
    value: int
    settings: tuple[str, ...]  # The user's settings that it would override, as names of glibc's tunables


_PARAMETERS = (
    # M_ARENA_MAX: a heap of another arena has 64 MiB at most, and goes when it is empty.
    _Parameter(-8, 1, ("arena_max",)),
    # M_MMAP_MAX: a block with a mapping of its own goes when it is freed.
    _Parameter(-4, 0, ("mmap_max", "mmap_threshold")),
    _Parameter(-1, -1, ("trim_threshold",)),  # M_TRIM_THRESHOLD: -1 never trims the heap
)
# Settings with which memory is given back; YARN limits the arenas of its containers, whose heaps alone go.
_GIVING_BACK = {"mmap_max", "mmap_threshold", "trim_threshold"}
# What a parameter's environment variable is called: MALLOC_ARENA_MAX, MALLOC_MMAP_MAX_.
_VARIABLE = re.compile(r"MALLOC_(\w+?)_?")

_is_kept = False


def keep_freed_memory() -> bool:
    """Lets this process keep the memory that it frees, for its next step; its size stays at its peak.

    lakelens calls it in the processes that it starts: ranks, and Spark's Python workers that decode or predict. Call it
    in a process of your own, such as a notebook that reads a `DeltaFeed`, before TensorFlow or PyTorch is imported.
    Settings of yours (`MALLOC_*`, `glibc.malloc.*` in `GLIBC_TUNABLES`) stay as they are.

    Returns:
        Whether memory is kept. False with another C library than glibc, or if settings of yours give it back.

    Examples:
        >>> lakelens.keep_freed_memory() in (True, False)
        True
    """
    global _is_kept
    if not _is_glibc():
        return False
    libc, given = ctypes.CDLL(None), settings_of(os.environ)
    results = [libc.mallopt(one.number, one.value) for one in _PARAMETERS if not given.intersection(one.settings)]
    _is_kept = all(results) and not given & _GIVING_BACK
    return _is_kept


def keep_again() -> None:
    """Repeats `keep_freed_memory` after other code has set the allocator, if this process has called it."""
    if _is_kept:
        keep_freed_memory()


def why_not_kept(environment: Mapping[str, str] = os.environ) -> str | None:
    """Says why a process with this environment gives freed memory back; None if it can keep it."""
    if not _is_glibc():
        return "the C library is not glibc"
    given = sorted(settings_of(environment) & _GIVING_BACK)
    return f"glibc.malloc.{given[0]} is set" if given else None


def settings_of(environment: Mapping[str, str]) -> set[str]:
    """Names the allocator's settings in an environment, as glibc's tunables call them, such as `arena_max`."""
    variables = (_VARIABLE.fullmatch(name) for name in environment)
    tunables = re.findall(r"glibc\.malloc\.(\w+)=", environment.get("GLIBC_TUNABLES", ""))
    return {*(found[1].lower() for found in variables if found), *tunables}


def _is_glibc() -> bool:
    return hasattr(ctypes.CDLL(None), "gnu_get_libc_version")  # musl has a `mallopt` that does nothing, or none
