"""Transfer learning in PyTorch: a backbone of torchvision.models under a new head, then fine-tuning of all of it."""

from __future__ import annotations

from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

from ...extras import missing_dependency

try:
    import torch
    import torchvision
    from torch import nn
except ModuleNotFoundError as error:
    raise missing_dependency(error, __name__) or error from None

from ...errors import InvalidHyperparameters, TrialError
from ..checkpoints.torch_files import read_tensors
from .backbones import NO_WEIGHTS, unknown_backbone
from .torch_layers import Pixels
from .torch_trial import TorchTrial

if TYPE_CHECKING:
    from .torch_trial import Batch

_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, as torchvision's weights expect


class TorchTransfer(TorchTrial):
    """A backbone of torchvision with a new last layer.

    Hyperparameters: `backbone`, a classifier of torchvision.models by name ("mobilenet_v2"). Initial `weights`: the
    path of a safetensors file, or of torchvision's `.pth` file of that backbone, which rank 0 reads; or "none", the
    default.
    `learning_rate` (0.001); `frozen` (true): whether only the new layer is trained; `dropout` (0.2) before it; `flip`
    (true) mirrors half of the batches while training.
    """

    def build_model(self) -> nn.Module:
        """Builds backbone and head for the job's classes."""
        hparam = self.context.get_hparam
        self._frozen, self._flip = hparam("frozen", True), hparam("flip", True)
        name, weights = hparam("backbone", "mobilenet_v2"), hparam("weights", NO_WEIGHTS)
        known = torchvision.models.list_models(module=torchvision.models)
        if name not in known:
            raise unknown_backbone("torchvision.models", name, known)
        backbone = torchvision.models.get_model(name, weights=None)
        # A rank other than 0 gets rank 0's weights, and a trained model its own.
        if weights != NO_WEIGHTS and self.context.training_feed is not None and self.context.rank == 0:
            _load(backbone, name, Path(weights).expanduser())
        if self._frozen:
            backbone.requires_grad_(False)
        place, last = _last_linear(backbone, name)
        head = nn.Sequential(nn.Dropout(hparam("dropout", 0.2)), nn.Linear(last.in_features, self.context.num_classes))
        holder, _, attribute = place.rpartition(".")
        setattr(backbone.get_submodule(holder), attribute, head)
        return nn.Sequential(Pixels(_MEAN, _DEVIATION), backbone)

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Builds Adam over the parameters that are trained."""
        trained = [each for each in model.parameters() if each.requires_grad]
        return torch.optim.Adam(trained, self.context.get_hparam("learning_rate", 0.001))

    def preprocess(self, images: torch.Tensor, labels: Any) -> tuple[torch.Tensor, Any]:
        """Mirrors half of the batches left to right."""
        flips = self._flip and bool(torch.rand(()) < 0.5)
        return images.flip(3) if flips else images, labels

    def training_step(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Computes the cross-entropy; a frozen backbone keeps the statistics of its batch normalization."""
        images, labels = batch
        if self._frozen:
            for layer in model.modules():
                if isinstance(layer, nn.modules.batchnorm._BatchNorm):  # noqa: SLF001  the base of all its kinds
                    layer.eval()
        return nn.functional.cross_entropy(model(images), labels)


def _last_linear(backbone: nn.Module, name: str) -> tuple[str, Any]:
    """Finds the classifier's last layer; gives its place and the layer."""
    linear = [(place, layer) for place, layer in backbone.named_modules() if isinstance(layer, nn.Linear)]
    if not linear or hasattr(backbone, "aux_logits"):
        lack = "has several outputs" if linear else "does not end in a linear layer"
        raise InvalidHyperparameters(f"the backbone {name!r} {lack}; choose another classifier")
    return linear[-1]


def _load(backbone: nn.Module, name: str, path: Path) -> None:
    """Loads weights, of a `.pth` file tensors alone: no object in it is unpickled."""
    if not path.is_file():
        raise TrialError(
            f"hyperparameter weights is {str(path)!r}: the file does not exist; give {NO_WEIGHTS!r} or the path of a "
            "backbone's weights"
        )
    try:
        is_safe = path.suffix == ".safetensors"
        backbone.load_state_dict(read_tensors(path) if is_safe else torch.load(path, "cpu", weights_only=True))
    except (RuntimeError, TypeError, EOFError, UnpicklingError) as error:
        raise TrialError(
            f"hyperparameter weights is {str(path)!r}: these are not weights of {name}: {error}"
        ) from error
