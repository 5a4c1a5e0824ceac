"""A model that writes down on how many images it runs, and fails when it is told to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from colours import mixed_model, save


def watched_model(folder: Path) -> tuple[Any, dict[str, Any]]:
    """Saves the colour model with a layer that obeys the files of a folder; gives checkpoint and custom objects.

    `device_gone` makes it fail on any image once it has run on so many as the file says, `not_red` on red ones only.
    """
    watching = folder / "watching"
    watching.mkdir()
    layer = _watched(str(watching))
    return save(mixed_model(layer), folder / "checkpoints"), {"Watched": layer}


def rows_run(folder: Path) -> int:
    """On how many images the model has run, except those on which it is tried."""
    return sum(int(file.read_text()) for file in (folder / "watching").glob("*.rows"))


def _watched(folder: str) -> Any:
    import keras

    has_run: list[bool] = []

    class Watched(keras.layers.Layer):
        def call(self, strengths: Any) -> Any:
            import tensorflow as tf

            def watch(values: Any) -> Any:
                import uuid
                from pathlib import Path

                place = Path(folder)
                gone, not_red = place / "device_gone", place / "not_red"
                done = sum(int(file.read_text()) for file in place.glob("*.rows"))
                # A worker that starts meanwhile would not get as far as to a row.
                # Batches on which a model is tried begin with a black image, and count for nothing.
                is_real = bool(values[0].any())
                if is_real:
                    has_run.append(True)
                if has_run and gone.exists() and done >= int(gone.read_text()):
                    raise RuntimeError("the device is gone")
                if not_red.exists() and is_real and (values.argmax(axis=1) == 0).any():
                    raise ValueError("red is not for me")
                if is_real:
                    name = uuid.uuid4().hex
                    (place / name).write_text(str(len(values)))
                    (place / name).rename(place / f"{name}.rows")
                return values

            watched = tf.numpy_function(watch, [strengths], tf.float32)
            watched.set_shape(strengths.shape)
            return watched

        def compute_output_shape(self, shape: Any) -> Any:
            return shape

    return Watched
