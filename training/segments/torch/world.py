"""The ranks of a training of a PyTorch model, a process' settings, rows on its device, and the modes of its model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ... import process_group
from ...distributed.objects import seal, unseal
from ...feed.read_options import cores_of_process
from ...process_group import counted
from ...rank import process_context


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


def without_padding(
    images: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the rows of positive weight."""
    real = weights > 0
    if bool(real.all()):
        return images, labels
    return images[real], labels[real]


def on_device(value: Any, device: torch.device) -> Any:
    """Moves tensors, and dicts of them, to a device, without waiting for what a GPU computes meanwhile."""
    if isinstance(value, dict):
        return {name: on_device(part, device) for name, part in value.items()}
    if device.type == "cuda" and value.device.type == "cpu":
        if 0 in value.stride():  # of `expand`: rows that share their memory cannot be pinned
            value = value.clone(memory_format=torch.contiguous_format)
        value = value.pin_memory()  # a copy from other memory waits for the GPU
    return value.to(device, non_blocking=True)


@contextmanager
def in_evaluation(model: torch.nn.Module) -> Iterator[None]:
    """Sets a model to evaluation mode; afterwards each module has the mode that it had, frozen ones among them."""
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, was_training in before.items():
            module.training = was_training


def set_to_training(model: torch.nn.Module) -> None:
    """Sets a model to training mode; modules that `build_model` has set to evaluation in such a model keep that."""
    if not model.training:
        model.train()


class TorchWorld:
    """The ranks of the process group; see `World`. Makes this process one of them; a single one needs no group."""

    def __init__(self) -> None:
        link = process_context.current()
        self.rank, self.size = link.rank, link.size
        if self.size > 1:
            process_group.init()
        has_gpu = torch.cuda.is_available()
        self.device = torch.device("cuda", torch.cuda.current_device()) if has_gpu else torch.device("cpu")

    def broadcast_object(self, value: Any, *, name: str) -> Any:
        """Returns rank 0's object; see `World.broadcast_object`."""
        return value if self.size == 1 else self._gathered(value if self.rank == 0 else None)[0]

    def allgather_object(self, value: Any, *, name: str) -> list[Any]:
        """Returns the objects of all ranks; see `World.allgather_object`."""
        return [value] if self.size == 1 else self._gathered(value)

    def sums(self, arrays: Sequence[np.ndarray[Any, Any]], *, name: str) -> list[np.ndarray[Any, Any]]:
        """Returns sums over all ranks; see `World.sums`."""
        tensors = [torch.from_numpy(np.array(array)) for array in arrays]
        for tensor in tensors if self.size > 1 else ():
            self.add_up(tensor)
        return [tensor.numpy() for tensor in tensors]

    def add_up(self, tensor: torch.Tensor) -> None:
        """Replaces a tensor by its sum over all ranks."""
        if self.size > 1:
            with counted():
                dist.all_reduce(tensor)

    def share(self, tensors: Sequence[torch.Tensor]) -> None:
        """Gives every rank the values of rank 0's tensors."""
        for tensor in tensors if self.size > 1 else ():
            with counted():
                dist.broadcast(tensor, 0)

    def _gathered(self, value: Any) -> list[Any]:
        """Gathers the objects of all ranks, signed with the job's key."""
        sealed = np.frombuffer(seal(value), np.uint8)
        lengths = np.zeros(self.size, np.int64)
        lengths[self.rank] = len(sealed)
        all_lengths = self.sums([lengths], name="lengths")[0].tolist()
        # Gloo gathers tensors of equal lengths.
        mine = torch.zeros(max(all_lengths), dtype=torch.uint8)
        mine[: len(sealed)] = torch.from_numpy(sealed.copy())
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        with counted():
            dist.all_gather(parts, mine)
        return [unseal(part[:length].numpy().tobytes()) for part, length in zip(parts, all_lengths, strict=True)]
