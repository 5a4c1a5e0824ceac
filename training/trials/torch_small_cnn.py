"""The small convolutional network in PyTorch: the baseline that trains on a laptop in seconds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ...extras import missing_dependency

try:
    import torch
    from torch import nn
except ModuleNotFoundError as error:
    raise missing_dependency(error, __name__) or error from None

from .small_cnn import blocks_of, half_cosine, momentum_of
from .torch_layers import Pixels
from .torch_trial import TorchTrial

if TYPE_CHECKING:
    from .torch_trial import Batch


class TorchSmallCnn(TorchTrial):
    """Blocks of convolution, batch normalisation and pooling, then one dense layer, as `SmallCnn` of Keras.

    Hyperparameters: `learning_rate` (0.003) at the first epoch, which then falls along half a cosine to zero; `filters`
    of the first block (16; each later block has twice the number); `blocks` (0 reduces the shorter side to 3 to 6
    pixels); `dense_units` (64); `dropout` (0); `shift` (0.06), the largest random shift while training as a part of
    the side, 0 for none.
    """

    def build_model(self) -> nn.Module:
        """Builds the network for the job's image size and classes."""
        hparam = self.context.get_hparam
        self._shift = hparam("shift", 0.06)
        blocks = blocks_of(self.context, "TorchSmallCnn")
        layers: list[nn.Module] = [Pixels()]
        channels, filters = 3, hparam("filters", 16)
        momentum = 1 - momentum_of(self.context)  # PyTorch's is the new batch's part
        for block in range(blocks):
            # The first block halves the image at once, because full-size feature maps would dominate the cost.
            kernel, stride = (5, 2) if block == 0 else (3, 1)
            made = filters << block
            layers += [
                nn.Conv2d(channels, made, kernel, stride, padding=kernel // 2, bias=False),
                nn.BatchNorm2d(made, eps=1e-3, momentum=momentum),
                nn.ReLU(),
            ]
            if block > 0:
                layers.append(nn.MaxPool2d(2))
            channels = made
        side = [math.ceil(each / 2) // (1 << (blocks - 1)) for each in self.context.image_size]
        layers += [
            nn.Flatten(),
            nn.Linear(channels * side[0] * side[1], hparam("dense_units", 64)),
            nn.ReLU(),
            nn.Dropout(hparam("dropout", 0.0)),
            nn.Linear(hparam("dense_units", 64), self.context.num_classes),
        ]
        return nn.Sequential(*layers)

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Builds Adam."""
        return torch.optim.Adam(model.parameters(), self.context.get_hparam("learning_rate", 0.003))

    def build_scheduler(self, optimizer: torch.optim.Optimizer) -> Any:
        """Lets the learning rate fall to zero over the planned epochs."""
        # A function of the epoch: a training that is continued to a larger length follows the larger one's curve.
        epochs = self.context.epochs
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: half_cosine(1.0, epoch, epochs))

    def preprocess(self, images: torch.Tensor, labels: Any) -> tuple[torch.Tensor, Any]:
        """Shifts each batch by a random part of the side; pixels at the edge are repeated."""
        most = [int(self._shift * side) for side in images.shape[2:]]
        if not any(most):
            return images, labels
        down, right = (int(torch.randint(-by, by + 1, ())) for by in most)
        rows, columns = (torch.arange(side) for side in images.shape[2:])
        rows, columns = (rows - down).clamp(0, len(rows) - 1), (columns - right).clamp(0, len(columns) - 1)
        return images[:, :, rows][:, :, :, columns], labels

    def training_step(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Computes the cross-entropy."""
        images, labels = batch
        return nn.functional.cross_entropy(model(images), labels)
