"""Checks of what a Trial gives: its model, its loss, and the parameters that its loss depends on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from ....errors import TrialError
from ...checkpoints.warm_start import listed
from ...tasks.task import ModelOutput

if TYPE_CHECKING:
    from ...trials.context import TrialContext
    from .world import TorchWorld

_SAMPLE_ROWS = 2


def check_model(model: object, context: TrialContext, device: torch.device) -> ModelOutput:
    """Checks that a Trial's model takes the feed's images, and that its output fits the task.

    Returns:
        Its output, for a batch of random images.

    Raises:
        TrialError: If it does not.
    """
    if not isinstance(model, torch.nn.Module):
        raise TrialError(f"build_model gave {type(model).__name__}; it must give a torch.nn.Module")
    images = torch.randint(
        0, 256, (_SAMPLE_ROWS, 3, *context.image_size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    was_training = model.training
    try:
        with torch.enable_grad():  # whose graph shows the last operation
            output = model.eval()(images.to(device))
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        raise TrialError(
            f"the model does not take the feed's images, uint8 {tuple(images.shape)}: {error}. Make scaling to floats "
            "a part of the model, and build it for context.image_size"
        ) from error
    finally:
        model.train(was_training)
    shape = (None, *output.shape[1:]) if isinstance(output, torch.Tensor) else None
    found = ModelOutput(shape, "", lambda: _gives_logits(output))
    context.task.check_output(found)
    return found


def _gives_logits(output: Any) -> bool | None:
    """Finds out whether values are logits: by the last operation if it is an activation, else by their sums."""
    if not isinstance(output, torch.Tensor) or output.ndim != 2:
        return None
    if type(output.grad_fn).__name__ in ("SigmoidBackward0", "SoftmaxBackward0"):
        return False
    values = output.detach().float()
    is_distribution = (values >= 0).all() and (values.sum(1) - 1).abs().max() < 1e-3
    return values.shape[1] == 1 or not bool(is_distribution)


def loss_and_means(given: object) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Reads what a training step returned.

    Returns:
        The loss, and the means by name, the loss among them.

    Raises:
        TrialError: If it returned no loss that gradients can be computed of.
    """
    means = dict(given) if isinstance(given, Mapping) else {"loss": given}
    loss = means.get("loss")
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
        kind = f"{type(loss).__name__} {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else repr(loss)
        raise TrialError(
            f"training_step returned {kind} as its loss; return a tensor of one number that depends on the model's "
            "parameters, or a dict with it as 'loss'"
        )
    return loss.reshape(()), {name: torch.as_tensor(value).detach() for name, value in means.items()}


def require_gradients(loss: torch.Tensor, model: torch.nn.Module, world: TorchWorld) -> None:
    """Checks that a loss depends on every trained parameter: otherwise ranks would wait for gradients that never come.

    Every rank calls it, and all raise or none does.

    Raises:
        TrialError: Names the parameters that it does not depend on.
    """
    used = {id(leaf) for leaf in _leaves(loss)}
    unused = [name for name, each in model.named_parameters() if each.requires_grad and id(each) not in used]
    found = max(world.allgather_object(unused, name="lakelens.unused"), key=len)
    if found:
        raise TrialError(
            f"the loss of training_step does not depend on {listed(found)}, so they get no "
            "gradients; use them in the forward pass, or set requires_grad=False in build_model"
        )


def _leaves(loss: torch.Tensor) -> Iterable[torch.Tensor]:
    """Yields the parameters that autograd would reach from a loss."""
    waiting, seen = [loss.grad_fn], set[Any]()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)  # of the nodes that add up a parameter's gradient
        if leaf is not None:
            yield leaf
        waiting += [following for following, _ in node.next_functions]
