"""Keeps freed memory in the process, for the processes that decode, train and predict.

glibc gives the memory of large tensors and images back to the kernel when they are freed. The next step takes it again,
page by page, and the kernel clears each page: up to half of the processor time of training and scoring. Source of the
parameters: mallopt(3).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

# Numbers of <malloc.h>, in the order of their names: M_ARENA_MAX, M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD.
# Heaps of other arenas have 64 MiB at most, and go when they are empty; mapped blocks go whenever they are freed.
_PARAMETERS = {-8: 1, -4: 0, -1: 2**31 - 1, -2: 64 << 20}

_is_kept = False


def keep_freed_memory() -> bool:
    """Lets this process keep the memory that it frees, for its next step; its size stays at its peak.

    lakelens calls it in the processes that it starts: ranks, and Spark's Python workers that decode or predict. Call it
    in a process of your own, such as a notebook that reads a `DeltaFeed`, before TensorFlow or PyTorch is imported.
    Settings of yours win: with `MALLOC_*` or `glibc.malloc` in `GLIBC_TUNABLES`, it changes nothing.

    Returns:
        Whether memory is kept. False with settings of yours, or another C library than glibc.

    Examples:
        >>> lakelens.keep_freed_memory() in (True, False)
        True
    """
    global _is_kept
    if why_not_kept() is not None:
        return False
    libc = ctypes.CDLL(None)
    results = [libc.mallopt(parameter, value) for parameter, value in _PARAMETERS.items()]
    _is_kept = all(results)
    return _is_kept


def keep_again() -> None:
    """Repeats `keep_freed_memory` after other code has set the allocator, if this process has called it."""
    if _is_kept:
        keep_freed_memory()


def why_not_kept(environment: Mapping[str, str] = os.environ) -> str | None:
    """Says why a process with this environment gives freed memory back; None if it can keep it."""
    if not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"):  # musl has a `mallopt` that does nothing, or none
        return "the C library is not glibc"
    given = sorted(name for name in environment if name.startswith("MALLOC_"))
    if "glibc.malloc" in environment.get("GLIBC_TUNABLES", ""):
        given.append("GLIBC_TUNABLES")
    return f"{given[0]} is set" if given else None
