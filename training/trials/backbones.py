"""Networks of keras.applications by name, with their own preprocessing and with weights from a path."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InvalidHyperparameters, TrialError
from ...options import closest

if TYPE_CHECKING:
    import keras

NO_WEIGHTS, IMAGENET = "none", "imagenet"


def application(
    name: str, weights: str, image_size: tuple[int, int], rank: int
) -> tuple[keras.Model, Callable[[Any], Any]]:
    """Builds a backbone without its head; gives it, and its preprocessing of pixels from 0 to 255."""
    import keras

    build = getattr(keras.applications, name, None)
    if not callable(build):
        known = [key for key in dir(keras.applications) if callable(getattr(keras.applications, key))]
        raise unknown_backbone("keras.applications", name, known)
    height, width = image_size
    loaded = _weights_on(rank, weights)
    try:
        backbone = build(include_top=False, weights=loaded, input_shape=(height, width, 3))
    except ValueError as error:
        raise InvalidHyperparameters(
            f"{name} of images of {height} x {width} pixels with weights {loaded!r}: {error}"
        ) from error
    except Exception as error:
        if loaded != IMAGENET:
            raise
        raise TrialError(
            f"the imagenet weights of {name} could not be downloaded ({error}); give weights: a path, or none"
        ) from error
    return backbone, importlib.import_module(build.__module__).preprocess_input


def unknown_backbone(library: str, name: str, known: Sequence[str]) -> InvalidHyperparameters:
    """Makes the error about a backbone that a library lacks, with the nearest name."""
    near = closest(name, known)
    hint = f"did you mean {near!r}?" if near else f"it has: {', '.join(known)}"
    return InvalidHyperparameters(f"{library} has no backbone {name!r}; {hint}")


def _weights_on(rank: int, given: str) -> str | None:
    """Returns the weights to load on a rank."""
    if given == NO_WEIGHTS or rank > 0:
        return None
    if given != IMAGENET and not Path(given).expanduser().is_file():
        raise TrialError(
            f"hyperparameter weights is {given!r}: the file does not exist; give {IMAGENET!r}, {NO_WEIGHTS!r} "
            "or the path of a backbone's weights"
        )
    return given if given == IMAGENET else str(Path(given).expanduser())
