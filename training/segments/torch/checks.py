"""Checks of what a Trial gives: its model, its loss, and whether it gives logits or probabilities."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from ....errors import TrialError
from ...checkpoints.warm_start import listed
from ...tasks.output_values import output_values
from ...tasks.task import ModelOutput
from .world import in_evaluation

if TYPE_CHECKING:
    from ...trials.metrics import Goal
    from ...trials.torch_trial import TorchTrial
    from .world import TorchWorld

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
    """Tells from the operations that `training_step` applies to the model's output; None if they do not show it."""
    outputs: list[Any] = []
    try:
        # So that neither the Trial's counters nor running statistics change here.
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
            "metric is available once per epoch, so set it to 'epoch'"
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
    """Checks on all ranks that a loss depends on every trained parameter: DistributedDataParallel waits for them."""
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
