"""A saved Keras model, with an optimizer that combines gradients over all ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..distributed.horovod_options import refuse
from ..distributed.optimizer import DistributedOptimizer
from ..distributed.reduce_ops import Compression
from .keras_files import load_keras_file


def load_model(
    filepath: str | os.PathLike[str],
    custom_optimizers: Sequence[type[Any]] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Compression = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Loads a model that was saved with `model.save`, and makes its optimizer combine gradients over all ranks.

    Keras' safe mode stays on: a model that contains code (a Lambda layer) is not loaded.
    """
    refuse(legacy_opts=legacy_opts)
    known = {kind.__name__: kind for kind in custom_optimizers or ()}
    model = load_keras_file(Path(filepath), compile=True, custom_objects={**known, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is not None:
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    return model
