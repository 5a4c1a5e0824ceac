"""Batches of decoded images as PyTorch tensors, with a state that any number of ranks can resume from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import InvalidArgumentError
from .image_batches import ImageBatches
from .plan.feed_plan import Position, position_of

if TYPE_CHECKING:
    import torch

    TorchBatch = tuple[torch.Tensor, Any, torch.Tensor]

LAYOUTS = ("NCHW", "NHWC")


class TorchBatches:
    """One rank's batches as tensors; `DeltaFeed.as_torch` describes them."""

    def __init__(self, batches: ImageBatches, layout: str, *, pin_memory: bool) -> None:
        import torch

        if layout not in LAYOUTS:
            raise InvalidArgumentError(f"layout={layout!r}: it is one of {', '.join(LAYOUTS)}")
        if pin_memory and not torch.cuda.is_available():
            raise InvalidArgumentError("pin_memory=True: PyTorch finds no CUDA GPU on this machine; leave it out")
        self._batches, self._layout, self._pin_memory = batches, layout, pin_memory
        self._start = self._reached = self._whole(batches.shard.start)

    def __iter__(self) -> Iterator[TorchBatch]:
        shard = replace(self._batches.shard, start=self._start)
        self._reached = self._start
        for batch in replace(self._batches, shard=shard).decoded_batches():
            # Before the caller has the batch: a state that it takes now continues after it.
            row = self._reached.row + shard.batches.global_batch_size
            self._reached = self._whole(Position(self._reached.epoch, row))
            if self._reached.row == 0:
                self._start = self._reached
            yield self._tensors(batch)

    def __len__(self) -> int:
        """Batches of the next iteration."""
        steps = replace(self._batches.shard, start=self._start).steps
        if steps is None:
            raise TypeError("epochs=None never ends, so it has no length")
        return steps

    def state_dict(self) -> dict[str, Any]:
        """Returns the place in the order of rows after the last batch that came out, as JSON values.

        It is the same on every rank, and does not depend on their number or on the batch size.
        """
        return {**vars(self._reached), "order": self._batches.shard.plan.fingerprint}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Lets the next iteration begin where a state was taken, at any number of ranks and any batch size."""
        self._start = self._reached = self._whole(position_of(self._batches.shard.plan, state_dict))

    def _whole(self, position: Position) -> Position:
        """Gives the start of the next epoch for a position at the end of one."""
        return position if position.row < self._batches.shard.plan.rows else Position(position.epoch + 1)

    def _tensors(self, batch: tuple[Any, Any, Any]) -> TorchBatch:
        images, target, weights = batch
        pixels, labels, weighed = self._tensor(images), self._tensor(target), self._tensor(weights)
        if self._layout == "NCHW":
            # A view: the memory stays NHWC, which PyTorch calls channels_last and convolutions prefer.
            pixels = pixels.permute(0, 3, 1, 2)
        preprocess = self._batches.images.output.preprocess
        if preprocess is not None:
            pixels, labels = preprocess(pixels, labels)
        return pixels, labels, weighed

    def _tensor(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        import torch

        # PyTorch's losses and indices take 64-bit integers.
        found = torch.from_numpy(array.astype(np.int64) if array.dtype == np.int32 else array)
        return found.pin_memory() if self._pin_memory else found


def running_rank_and_size() -> tuple[int, int] | None:
    """Finds this process's rank and the number of ranks in PyTorch's process group; None outside one."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return None
    return dist.get_rank(), dist.get_world_size()
