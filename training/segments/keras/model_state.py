"""The state of a Keras model in training on one rank: noise, running metrics, statistics, counters of callbacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import keras
import tensorflow as tf

from ...distributed.optimizer import added_up
from ...keras_internals import flattened_layers, untrained_variables
from ...rank.process_context import log_to_driver
from ..training_state import RankState, decode, encode_attributes, random_state, rank_seed

if TYPE_CHECKING:
    from ..training_state import Arrays

NoiseSource: TypeAlias = keras.layers.Layer | keras.random.SeedGenerator


def separate_noise(sources: Iterable[NoiseSource], rank: int) -> None:
    """Reseeds the random layers (dropout, augmentation) of models that every rank has built from one seed."""
    for state in noise_states(sources):
        copies = copies_of(state)
        seed, drawn = (int(number) for number in copies[0].numpy())
        for number, copy in enumerate(copies):
            copy.assign([rank_seed(seed, rank * len(copies) + number), drawn])


def renew_noise(sources: Iterable[NoiseSource], rank: int, step: int) -> None:
    """Reseeds random layers with seeds not used before a step, if the number of ranks has changed."""
    for state in noise_states(sources):
        for copy in copies_of(state):
            seed, _ = (int(number) for number in copy.numpy())
            copy.assign([rank_seed(rank_seed(seed, step), rank), 0])


def copies_of(variable: keras.Variable) -> list[tf.Variable]:
    """Returns a variable's copy on each device; untrained variables differ between devices."""
    held = variable.value
    return list(getattr(held, "values", [held]))


def noise_states(sources: Iterable[NoiseSource]) -> list[keras.Variable]:
    """Finds the states of seed generators, each once, in the order of the sources."""
    return list({id(state): state for source in sources for state in _noise_states(source)}.values())


def _noise_states(source: NoiseSource) -> list[keras.Variable]:
    if isinstance(source, keras.random.SeedGenerator):
        return [source.state]
    # Keras counts them among a layer's variables, and not among its weights.
    weights = {id(weight) for weight in source.weights}
    return [variable for variable in source.variables if id(variable) not in weights]


# Subclasses may do more than write, such as talk to the other ranks.
_WRITERS = (keras.callbacks.ModelCheckpoint, keras.callbacks.CSVLogger)


class RankCallbacks(keras.callbacks.CallbackList):  # type: ignore[misc]
    """Callbacks that hear of the end of a validation once its metrics are those of all ranks, and so decide alike."""

    def on_test_end(self, logs: Any = None) -> None:
        """Does nothing: Keras' `evaluate` calls it with the metrics of this rank's rows."""

    def end_validation(self, metrics: Mapping[str, float]) -> None:
        """Calls `on_test_end` of each callback."""
        super().on_test_end(metrics)


def writing_on_rank_0(callbacks: Sequence[keras.callbacks.Callback], rank: int) -> list[keras.callbacks.Callback]:
    """Replaces Keras' own writers of files on the other ranks: two that write one file at once damage it."""
    # A replacement has the name of what it replaces, by which the state of the callbacks is restored.
    return [
        type(type(each).__name__, (keras.callbacks.Callback,), {})() if rank > 0 and type(each) in _WRITERS else each
        for each in callbacks
    ]


# Attributes that Keras sets in each process; it changes the sign of `min_delta` at the first epoch's end.
_OF_KERAS = frozenset({"_model", "model", "params", "validation_data", "min_delta"})
_ADDED_UP = "added_up/"


def capture(
    model: keras.Model, noisy: Sequence[NoiseSource], callbacks: Sequence[keras.callbacks.Callback], inside: bool
) -> RankState:
    """Takes the state of this rank."""
    arrays: Arrays = {}
    values = {
        **random_state(arrays),
        "noise": [[int(number) for number in copy.numpy()] for copy in _noise(noisy)],
        "callbacks": [
            {"class": type(each).__name__, "values": encode_attributes(each, arrays, f"callback/{number}", _OF_KERAS)}
            for number, each in enumerate(callbacks)
        ],
    }
    if inside:
        for name, variable in _running(model).items():
            arrays[name] = variable.numpy()
    count, *sums = added_up(model.optimizer) or [0]
    if int(count) > 0:
        arrays |= {f"{_ADDED_UP}{number}": each.numpy() for number, each in enumerate([count, *sums])}
    return RankState(values, arrays)


def restore_variables(state: RankState, model: keras.Model, noisy: Sequence[NoiseSource], *, inside: bool) -> None:
    """Restores noise and, inside an epoch, metrics and statistics of an identically built model."""
    for variable, numbers in zip(_noise(noisy), state.values["noise"], strict=True):
        variable.assign(numbers)
    if inside:
        restore_running(state, model)
    for number, variable in enumerate(added_up(model.optimizer)):
        if f"{_ADDED_UP}{number}" in state.arrays:
            variable.assign(state.arrays[f"{_ADDED_UP}{number}"])


def restore_running(state: RankState, model: keras.Model) -> None:
    """Restores this rank's metrics and statistics of an epoch in progress."""
    for name, variable in _running(model).items():
        if name in state.arrays:  # else the model's file has it
            variable.assign(state.arrays[name])


def restore_callbacks(state: RankState, callbacks: Sequence[keras.callbacks.Callback]) -> None:
    """Restores the plain attributes of callbacks of the same classes; call it after `on_train_begin`."""
    kept = state.values["callbacks"]
    names = [type(each).__name__ for each in callbacks]
    if names != [each["class"] for each in kept]:
        log_to_driver(f"the callbacks differ from the checkpoint's ({', '.join(names)}); they start from scratch")
        return
    for each, described in zip(callbacks, kept, strict=True):
        for name, value in described["values"].items():
            vars(each)[name] = decode(value, state.arrays)


def statistics_of(model: keras.Model) -> list[keras.Variable]:
    """Finds floating-point variables that gradients never train, such as moving means; not weights of frozen layers."""
    variables = [variable for layer in flattened_layers(model) for variable in untrained_variables(layer)]
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
