"""Whether a PyTorch model gives logits or probabilities: from the operations of its graph, then from its loss."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from ....errors import TrialError

if TYPE_CHECKING:
    from ...trials.torch_trial import TorchTrial

# Names of nodes of autograd's graph. The softmax of log-softmax values is that of the logits.
_LOGITS = {"AddmmBackward0", "MmBackward0", "ConvolutionBackward0", "LogSoftmaxBackward0"}
_PROBABILITIES = {"SigmoidBackward0", "SoftmaxBackward0", "HardsigmoidBackward0"}
_TRANSPARENT = {
    "AdaptiveAvgPool2DBackward0",
    "AliasBackward0",
    "AvgPool2DBackward0",
    "CloneBackward0",
    "MeanBackward0",
    "MeanBackward1",
    "PermuteBackward0",
    "ReshapeAliasBackward0",
    "SelectBackward0",
    "SqueezeBackward0",
    "SqueezeBackward1",
    "ToCopyBackward0",
    "UnsafeViewBackward0",
    "UnsqueezeBackward0",
    "ViewBackward0",
}
# Operations of losses. Those of probabilities decide only without one of logits, as in the loss of a softmax.
_OF_LOGITS = {
    "BinaryCrossEntropyWithLogitsBackward0",
    "LogSigmoidBackward0",
    "LogSoftmaxBackward0",
    "LogsumexpBackward0",
    "SigmoidBackward0",
    "SoftmaxBackward0",
    "SoftplusBackward0",
}
_OF_PROBABILITIES = {"BinaryCrossEntropyBackward0", "LogBackward0"}
_OF_LOG_PROBABILITIES = {"NllLossBackward0"}


def operations_give_logits(output: torch.Tensor) -> bool | None:
    """Tells from the last operation that makes new numbers; None if it is neither linear nor an activation."""
    node = output.grad_fn
    while node is not None:
        name = type(node).__name__
        if name == "SoftmaxBackward0":
            _require_rows_of_their_own(node, output)
        if name in _LOGITS:
            return True
        if name in _PROBABILITIES:
            return False
        before = [each for each, _ in node.next_functions if each is not None]
        if name not in _TRANSPARENT or len(before) != 1:
            return None
        node = before[0]
    return None


def _require_rows_of_their_own(node: Any, output: torch.Tensor) -> None:
    dimension = node._saved_dim  # noqa: SLF001  autograd has no other name for it
    dimension -= 2**64 if dimension >= 2**63 else 0
    if dimension in (0, -output.ndim):
        raise TrialError(
            f"the model ends in a softmax over dimension {dimension}, the rows of a batch, so the values of an image "
            "depend on the other images; use dim=1"
        )


def loss_takes_logits(trial: TorchTrial, model: torch.nn.Module, images: torch.Tensor) -> bool | None:
    """Tells from the operations that `training_step` applies to the model's output; None if they do not show it.

    The step runs on copies of Trial and model, so that neither its counters nor running statistics change here.
    """
    outputs: list[Any] = []
    try:
        copied, step = copy.deepcopy(model).train(), copy.copy(trial)
        copied.register_forward_hook(lambda _, __, output: outputs.append(output))
        labels = torch.zeros(len(images), dtype=torch.int64, device=images.device)
        given = step.training_step(copied, step.preprocess(images, labels))
        loss: Any = given["loss"] if isinstance(given, dict) else given
        applied = {type(node).__name__ for node in _applied_to(outputs[-1].grad_fn, loss.grad_fn)}
    except Exception:  # noqa: BLE001  the user's own code, which may need real labels
        return None
    if applied & _OF_LOGITS:
        return True
    return False if applied & _OF_PROBABILITIES else True if applied & _OF_LOG_PROBABILITIES else None


def _applied_to(output: Any, loss: Any) -> set[Any]:
    """Finds the nodes between a model's output and the loss."""
    users: dict[Any, list[Any]] = {}
    waiting = [loss]
    while waiting:
        node = waiting.pop()
        for before, _ in node.next_functions if node is not output else ():
            if before is not None:
                if before not in users:
                    waiting.append(before)
                users.setdefault(before, []).append(node)
    found, waiting = set[Any](), list(users.get(output, ()))
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += users.get(node, ())
    return found
