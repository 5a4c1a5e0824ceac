"""Seeds the noise of ranks: dropout and augmentation differ by rank, and repeat with the same seed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import keras
import tensorflow as tf

from ..rank_state import rank_seed

NoiseSource: TypeAlias = keras.layers.Layer | keras.random.SeedGenerator


def separate_noise(sources: Iterable[NoiseSource], rank: int) -> None:
    """Reseeds the random layers (dropout, augmentation) of models that every rank has built from one seed.

    The copies on several devices of a process are reseeded like those of as many ranks would be.
    """
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
    """Finds the states of seed generators, each once, in the order of the sources.

    Keras counts them among a layer's variables, and not among its weights.
    """
    return list({id(state): state for source in sources for state in _noise_states(source)}.values())


def _noise_states(source: NoiseSource) -> list[keras.Variable]:
    if isinstance(source, keras.random.SeedGenerator):
        return [source.state]
    weights = {id(weight) for weight in source.weights}
    return [variable for variable in source.variables if id(variable) not in weights]
