"""The private names of Keras that lakelens uses, each with the reason: no other module uses one.

Two more are names of methods that our subclasses override: `BatchNormalization._moments` in
`distributed/sync_batch_norm.py` and `Optimizer._all_reduce_sum_gradients` in `distributed/optimizer.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import keras


def flattened_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """Lists a model, its layers, and the layers within these."""
    # `model.layers` lacks layers that a layer holds in an attribute or a list.
    return list(model._flatten_layers())


def untrained_variables(layer: keras.layers.Layer) -> list[keras.Variable]:
    """Lists a layer's own variables that no gradient trains, frozen or not."""
    # `non_trainable_variables` adds the weights of a frozen layer.
    return list(layer._non_trainable_variables)


def build_for(model: keras.Model, batch: Any) -> None:
    """Builds the loss and the metrics of a compiled model, as `fit` does."""
    # `fit` draws a batch for it, and the feed would then start after that batch.
    model._symbolic_build(data_batch=batch)


def never_build_again(model: keras.Model) -> None:
    """Stops `evaluate` from building a built model again."""
    # It builds from the mean of the devices' first batches, which fails if these have different numbers of rows.
    model._maybe_symbolic_build = lambda **_: None


def logged_metrics(model: keras.Model, logs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns what `fit` logs after a step: the step's logs, with the values of the model's metrics among them."""
    # A custom train_step may return values that are not metrics of the model; `get_metrics_result` lacks these.
    return dict(model._get_metrics_result_or_logs(logs))


def producer(tensor: keras.KerasTensor) -> tuple[keras.layers.Layer, Sequence[keras.KerasTensor]]:
    """Returns the layer that gives a symbolic tensor, and the tensors that this call of the layer takes."""
    # No public name leads from a tensor to its layer.
    layer, node, _ = tensor._keras_history
    return layer, layer._inbound_nodes[node].input_tensors


def given_learning_rate(optimizer: keras.optimizers.Optimizer) -> Any:
    """Returns an optimizer's learning rate as it was given: a variable or a schedule."""
    # `learning_rate` is the schedule's present value.
    return getattr(optimizer, "_learning_rate", None)


def updated_variables(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """Lists the variables that a built optimizer updates, in its order."""
    # `variables` are its state.
    return list(optimizer._trainable_variables)


def place_among_updated(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> int:
    """Returns the place of a variable among `updated_variables`."""
    # Keras knows a variable both directly and by the TensorFlow variable in it, which a custom step may pass.
    return int(optimizer._get_variable_index(variable))


def averaged_weights(optimizer: keras.optimizers.Optimizer) -> list[tuple[keras.Variable, keras.Variable]]:
    """Pairs each weight that a built optimizer averages (`use_ema`) with its average."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # of a loss scale
    found: list[tuple[keras.Variable, keras.Variable]] = []
    for each in getattr(inner, "optimizers", [inner]):
        if each.use_ema:
            found += zip(each._trainable_variables, each._model_variables_moving_average, strict=True)
    return [(weight, average) for weight, average in found if average is not None]


def averages_are_in_model(callback: keras.callbacks.SwapEMAWeights) -> bool:
    """Returns whether the callback has given the model the averages."""
    return bool(callback._ema_weights_in_model)
