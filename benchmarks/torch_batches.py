"""Rows in memory, and the Trial that trains on them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from lakelens.training.trials.torch_small_cnn import TorchSmallCnn

if TYPE_CHECKING:
    from lakelens import DeltaFeed


class Decoded:
    """A rank's decoded rows; each iteration gives them in another order."""

    def __init__(self, feed: DeltaFeed, rank: int, size: int, side: int, batch_size: int) -> None:
        parts = list(feed.as_torch(batch_size, rank, size, epochs=1, image_size=side, layout="NHWC"))
        self._images, self._labels, weights = (torch.cat(each) for each in zip(*parts, strict=True))
        self._rows, self._local = torch.nonzero(weights).flatten(), batch_size // size

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for rows in self._rows[torch.randperm(len(self._rows))].split(self._local):
            yield self._images[rows].permute(0, 3, 1, 2), self._labels[rows]


class InMemory(TorchSmallCnn):
    """The small network on rows in memory."""

    def build_training_dataset(self) -> Decoded:
        """Decodes this rank's rows."""
        context = self.context
        assert context.training_feed is not None  # noqa: S101  a training has one
        side = context.image_size[0]
        return Decoded(context.training_feed, context.rank, context.size, side, context.global_batch_size)
