"""Checks of what a Trial gives: its model, its loss, and the parameters that its loss depends on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from ....errors import TrialError
from ...checkpoints.warm_start import listed
from ...tasks.output_values import output_values
from ...tasks.task import ModelOutput
from .modes import in_evaluation
from .output import loss_takes_logits, operations_give_logits

if TYPE_CHECKING:
    from ...trials.metrics import Goal
    from ...trials.torch_trial import TorchTrial
    from .world import TorchWorld

_SAMPLE_ROWS = 2


def check_model(model: object, trial: TorchTrial, device: torch.device) -> ModelOutput:
    """Checks that a Trial's model takes the feed's images, and that its output fits the task."""
    context = trial.context
    if not isinstance(model, torch.nn.Module):
        raise TrialError(f"build_model gave {type(model).__name__}; it must give a torch.nn.Module")
    images = torch.randint(
        0, 256, (_SAMPLE_ROWS, 3, *context.image_size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    try:
        with in_evaluation(model), torch.enable_grad():  # whose graph shows the last operation
            output = model(images.to(device))
    except Exception as error:
        raise TrialError(
            f"the model does not take the feed's images, uint8 {tuple(images.shape)}: {type(error).__name__}: {error}. "
            "Make scaling to floats a part of the model, and build it for context.image_size"
        ) from error
    shown = operations_give_logits(output) if isinstance(output, torch.Tensor) else None
    if shown is None and trial.outputs is None:
        shown = loss_takes_logits(trial, model, images.to(device))
    found = ModelOutput(_shape(output), "", output_values(shown, trial.outputs))
    context.task.check_output(found)
    if shown is None:
        context.task.answers(output.detach().float().cpu().numpy(), context.task.describe_output(found))
    return found


def _shape(output: Any) -> Any:
    """Returns the shape of a tensor with any number of rows, nested like the output; of other objects their type."""
    if isinstance(output, torch.Tensor):
        return (None, *output.shape[1:])
    if isinstance(output, Mapping):
        return {name: _shape(each) for name, each in output.items()}
    if isinstance(output, (list, tuple)):
        return [_shape(each) for each in output]
    return type(output).__name__


def check_scheduler(trial: TorchTrial, scheduler: object, goal: Goal) -> None:
    """Checks that a scheduler that reads a metric gets it, and looks in the direction in which it improves."""
    if not isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        return
    if trial.scheduler_interval != "epoch":
        raise TrialError(
            f"build_scheduler returned ReduceLROnPlateau, and scheduler_interval is {trial.scheduler_interval!r}; a "
            "metric is known once per epoch, so set it to 'epoch'"
        )
    if scheduler.mode != goal.mode:
        raise TrialError(
            f"build_scheduler returned ReduceLROnPlateau(mode={scheduler.mode!r}), which reads {goal.metric!r}, whose "
            f"best value is its {goal.mode}imum; give it mode={goal.mode!r}"
        )


def require_saved(trial: TorchTrial, model: torch.nn.Module) -> None:
    """Checks that averages of the weights are part of the model: others are neither saved nor scored."""
    saved = {id(module) for module in model.modules()}
    for name, value in vars(trial).items():
        if isinstance(value, torch.optim.swa_utils.AveragedModel) and id(value) not in saved:
            raise TrialError(
                f"the Trial keeps an AveragedModel in self.{name}, outside the model of build_model, so checkpoints "
                "lack its weights, and a resume and score do not know them; let build_model return a module that "
                "contains both, and uses the average in evaluation mode (docs/pytorch.md)"
            )


def loss_and_means(given: object) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Reads what a training step returned."""
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
