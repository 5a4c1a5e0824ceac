"""Settings of PyTorch that belong to the process, not to one training."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...feed.read_options import cores_of_process


def remember_settings() -> Callable[[], None]:
    """Remembers the global settings; the result restores them."""
    threads, exact = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    dtype = torch.get_default_dtype()

    def restore() -> None:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(exact)
        torch.set_default_dtype(dtype)

    return restore


def set_up(*, deterministic: bool) -> None:
    """Gives this rank its share of the machine's cores; an exact training gets one, and deterministic operations."""
    torch.set_num_threads(1 if deterministic else cores_of_process())
    torch.use_deterministic_algorithms(deterministic)
