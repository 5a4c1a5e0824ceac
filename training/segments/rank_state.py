"""The state of a training on one rank: noise, random state, running metrics, counters of callbacks.

Rank 0 gathers it from all ranks into a checkpoint, as JSON and arrays; nothing is pickled into a file.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..rank.process_context import log_to_driver
from .noise import copies_of, noise_states
from .plain_values import decode, encode, encode_attributes

if TYPE_CHECKING:
    import keras
    import numpy as np
    import tensorflow as tf

    from .noise import NoiseSource
    from .plain_values import Arrays

# Attributes that Keras sets in each process; it changes the sign of `min_delta` at the first epoch's end.
_OF_KERAS = frozenset({"_model", "model", "params", "validation_data", "min_delta"})
_ADDED_UP = "added_up/"


@dataclass
class RankState:
    """A rank's state.

    Attributes:
        values: JSON values.
        arrays: By name.
    """

    values: dict[str, Any]
    arrays: Arrays = field(default_factory=dict)


def capture(
    model: keras.Model,
    noisy: Sequence[NoiseSource],
    callbacks: Sequence[keras.callbacks.Callback],
    inside: bool,
) -> RankState:
    """Takes the state of this rank.

    Args:
        model: The model in training.
        noisy: The model, and layers and seed generators outside it that draw noise.
        callbacks: All of them, in order.
        inside: Whether an epoch is in progress; then metrics and untrained statistics are included. Gradients not yet
            applied are always included.
    """
    arrays: Arrays = {}
    values = {
        "python": encode(random.getstate(), arrays, "python"),
        "numpy": encode(_numpy_state(), {}, "numpy"),
        "noise": [[int(number) for number in copy.numpy()] for copy in _noise(noisy)],
        "callbacks": [
            {"class": type(each).__name__, "values": encode_attributes(each, arrays, f"callback/{number}", _OF_KERAS)}
            for number, each in enumerate(callbacks)
        ],
    }
    if inside:
        for name, variable in _running(model).items():
            arrays[name] = variable.numpy()
    count, *sums = _added_up(model) or [0]
    if int(count) > 0:
        arrays |= {f"{_ADDED_UP}{number}": each.numpy() for number, each in enumerate([count, *sums])}
    return RankState(values, arrays)


def restore_variables(state: RankState, model: keras.Model, noisy: Sequence[NoiseSource], *, inside: bool) -> None:
    """Restores noise and, inside an epoch, metrics and statistics of an identically built model."""
    for variable, numbers in zip(_noise(noisy), state.values["noise"], strict=True):
        variable.assign(numbers)
    if inside:
        restore_running(state, model)
    for number, variable in enumerate(_added_up(model)):
        if f"{_ADDED_UP}{number}" in state.arrays:
            variable.assign(state.arrays[f"{_ADDED_UP}{number}"])


def restore_running(state: RankState, model: keras.Model) -> None:
    """Restores this rank's metrics and statistics of an epoch in progress."""
    for name, variable in _running(model).items():
        if name in state.arrays:  # else the model's file has it
            variable.assign(state.arrays[name])


def restore_process(state: RankState, callbacks: Sequence[keras.callbacks.Callback]) -> None:
    """Restores counters of callbacks and the random state of Python and NumPy; call it after `on_train_begin`."""
    restore_callbacks(state, callbacks)
    random.setstate(decode(state.values["python"], state.arrays))
    _set_numpy_state(decode(state.values["numpy"], state.arrays))


def restore_callbacks(state: RankState, callbacks: Sequence[keras.callbacks.Callback]) -> None:
    """Restores the plain attributes of callbacks; callbacks of another class keep their own."""
    kept = state.values["callbacks"]
    names = [type(each).__name__ for each in callbacks]
    if names != [each["class"] for each in kept]:
        log_to_driver(f"the callbacks differ from the checkpoint's ({', '.join(names)}); they start from scratch")
        return
    for each, described in zip(callbacks, kept, strict=True):
        for name, value in described["values"].items():
            vars(each)[name] = decode(value, state.arrays)


def gather(state: RankState, rank: int) -> list[RankState]:
    """Collects the states of all ranks on rank 0; every rank calls it.

    Arrays equal to rank 0's are not sent.

    Returns:
        On rank 0 a state for each rank; on others an empty list.
    """
    from .. import distributed as world

    if world.size() == 1:
        return [state]
    mine = {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in state.arrays.items()}
    first = world.broadcast_object(mine, 0, name="lakelens.state.digests")
    other = {} if rank == 0 else {name: state.arrays[name] for name in mine if mine[name] != first.get(name)}
    gathered = world.allgather_object((state.values, other), name="lakelens.state")
    if rank > 0:
        return []
    return [state, *(RankState(values, arrays) for values, arrays in gathered[1:])]


def of_rank(states: Sequence[RankState], rank: int) -> RankState:
    """Returns a rank's state with the arrays that are equal to rank 0's."""
    return RankState(states[rank].values, {**states[0].arrays, **states[rank].arrays})


def statistics_of(model: keras.Model) -> list[keras.Variable]:
    """Finds floating-point variables that gradients never train, such as moving means; not weights of frozen layers.

    Layers may be frozen and unfrozen during a training; the result stays the same.
    """
    import tensorflow as tf

    variables = [variable for layer in model._flatten_layers() for variable in layer._non_trainable_variables]
    return [v for v in {id(v): v for v in variables}.values() if tf.as_dtype(v.dtype).is_floating]


def _noise(noisy: Sequence[NoiseSource]) -> list[tf.Variable]:
    return [copy for state in noise_states(noisy) for copy in copies_of(state)]


def _running(model: keras.Model) -> dict[str, tf.Variable]:
    """Finds variables that an epoch in progress has changed only on this rank's devices, by the name of the array."""
    found = {}
    kinds = {"statistic/": statistics_of(model), "metric/": model.metrics_variables}
    for kind, variables in kinds.items():
        for number, variable in enumerate(variables):
            first, *others = copies_of(variable)
            found[f"{kind}{number}"] = first
            found |= {f"device/{place}/{kind}{number}": copy for place, copy in enumerate(others, 1)}
    return found


def _added_up(model: keras.Model) -> list[tf.Variable]:
    """Finds the gradients that are not yet applied."""
    from ..distributed.optimizer import added_up

    return added_up(model.optimizer)


def _numpy_state() -> dict[str, Any]:
    import numpy as np

    state: Any = np.random.get_state(legacy=False)
    inner = state["state"]
    return {**state, "state": {"key": inner["key"].tolist(), "pos": int(inner["pos"])}}


def _set_numpy_state(state: Mapping[str, Any]) -> None:
    import numpy as np

    key: np.ndarray[Any, Any] = np.asarray(state["state"]["key"], np.uint32)
    np.random.set_state({**state, "state": {"key": key, "pos": state["state"]["pos"]}})
