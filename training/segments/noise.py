"""Noise of a rank: dropout and augmentation draw other numbers on each rank, and the same again from the same seed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import keras


def rank_seed(seed: int, rank: int) -> int:
    """Derives the seed of a rank's noise; rank 0 keeps the seed itself, so that one rank alone draws from it."""
    if rank == 0:
        return seed
    digest = hashlib.sha256(f"{seed}/{rank}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def separate_noise(layers: Iterable[keras.layers.Layer], rank: int) -> None:
    """Reseeds the random layers (dropout, augmentation) of models that every rank has built from one seed.

    Args:
        layers: Layers and models; what they hold is found.
        rank: This rank; nothing changes on rank 0.
    """
    for state in noise_states(layers):
        seed, drawn = (int(number) for number in state.numpy())
        state.assign([rank_seed(seed, rank), drawn])


def renew_noise(layers: Iterable[keras.layers.Layer], rank: int, step: int) -> None:
    """Reseeds random layers with seeds that no rank has used before a step: where the number of ranks has changed.

    Args:
        layers: Layers and models.
        rank: This rank.
        step: The step that training goes on after; above 0.
    """
    for state in noise_states(layers):
        seed, _ = (int(number) for number in state.numpy())
        state.assign([rank_seed(rank_seed(seed, step), rank), 0])


def noise_states(layers: Iterable[keras.layers.Layer]) -> list[keras.Variable]:
    """Finds the states of seed generators, each once, in the order of the layers.

    Keras counts them among a layer's variables, and not among its weights.
    """
    return list({id(state): state for layer in layers for state in _noise_states(layer)}.values())


def _noise_states(layer: keras.layers.Layer) -> list[keras.Variable]:
    weights = {id(weight) for weight in layer.weights}
    return [variable for variable in layer.variables if id(variable) not in weights]
