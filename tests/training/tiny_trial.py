"""A Trial that learns the coloured squares in an epoch or two, in a file that ranks load."""

from __future__ import annotations

import textwrap
from pathlib import Path

_TINY = """
    import keras
    from lakelens.training.trials.keras_trial import KerasTrial

    class Tiny(KerasTrial):
        def build_model(self):
            model = keras.Sequential([
                keras.Input((*self.context.image_size, 3)),
                keras.layers.Rescaling(1 / 255),
                keras.layers.Conv2D(4, 3, activation="relu"),
                keras.layers.GlobalAveragePooling2D(),
                keras.layers.Dense(self.context.num_classes, activation="softmax"),
            ])
            optimizer = keras.optimizers.SGD(self.context.get_hparam("learning_rate", 0.1))
            model.compile(optimizer, "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
            return model
"""


def tiny_trial(folder: Path, name: str = "Tiny", more: str = "") -> str:
    """Writes `tiny.py` with `Tiny`, and with classes of a test's own, into a folder; gives the entry point of one."""
    (folder / "tiny.py").write_text(textwrap.dedent(_TINY) + textwrap.dedent(more))
    return f"{folder / 'tiny.py'}:{name}"
