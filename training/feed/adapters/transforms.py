"""What happens to rows between the table and the reader's named tuples: a user's TransformSpec, or decoded images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ....errors import BadRowError, ImageError, InvalidArgumentError
from ....etl.images.stored_image import CHANNELS, PixelDecoder, StoredImage
from ....etl.model import schema
from ..columns import Columns
from .fields import TransformSpec, as_vectors

if TYPE_CHECKING:
    import pandas as pd

# Types of text in a Unischema, and what holds it.
_TEXTS: dict[Any, type] = {np.str_: str, np.bytes_: bytes}


class ImageDecoding(TransformSpec):  # type: ignore[misc]
    """A TransformSpec that decodes a column of stored images; `lakelens.decode_images` makes it.

    The feed's reader decodes straight into the batch. Anything else that takes a TransformSpec calls `func` on frames.
    """

    def __init__(self, height: int, width: int, image_column: str) -> None:
        super().__init__(self._on_frame, edit_fields=[(image_column, np.uint8, (height, width, CHANNELS), False)])
        self.shape = (height, width, CHANNELS)
        self.image_column = image_column
        self._decoder = PixelDecoder()

    def decode(
        self, images: Sequence[StoredImage], pixels: npt.NDArray[np.uint8], describe: Callable[[int], str]
    ) -> None:
        """Decodes images into `pixels`: uint8 [rows, height, width, 3]; `describe` names a row in the error."""
        for row, image in enumerate(images):
            try:
                self._decoder.decode(image, pixels[row])
            except ImageError as error:
                raise BadRowError(
                    f"{describe(row)} does not decode to {self.shape[0]} x {self.shape[1]} pixels: {error}; repair the "
                    "row, or leave it out with filters"
                ) from error

    def _on_frame(self, frame: pd.DataFrame) -> pd.DataFrame:
        forms, heights, widths = (
            frame[name] if name in frame else [None] * len(frame)
            for name in (schema.FORMAT, schema.HEIGHT, schema.WIDTH)
        )
        images = list(map(StoredImage, frame[self.image_column], forms, heights, widths))
        pixels = np.empty((len(images), *self.shape), dtype=np.uint8)
        self.decode(images, pixels, lambda row: f"row {row} of the frame")
        return frame.assign(**{self.image_column: list(pixels)})


def apply_transform(spec: Any, columns: Columns, given: Any) -> Columns:
    """Applies a TransformSpec to some rows; returns columns of the types and shapes of the Unischema `given`."""
    import pandas as pd

    frame = pd.DataFrame({name: list(array) if array.ndim > 1 else array for name, array in columns.items()})
    frame = frame[list(given.fields)] if spec.func is None else spec.func(frame)
    if not isinstance(frame, pd.DataFrame):
        raise InvalidArgumentError(
            f"transform_spec: its function gave {type(frame).__name__}; it is called with a pandas DataFrame of many "
            "rows, as by make_batch_reader, and has to give one"
        )
    left = set(frame.columns) - set(spec.removed_fields)
    if left != set(given.fields):
        raise InvalidArgumentError(
            f"transform_spec: its function gave the columns {', '.join(sorted(map(str, left)))}, declared are "
            f"{', '.join(sorted(given.fields))}; name changed columns in edit_fields and others in removed_fields or "
            "selected_fields"
        )
    return {name: _array(name, frame[name], field) for name, field in given.fields.items()}


def _array(name: str, values: pd.Series[Any], field: Any) -> npt.NDArray[Any]:
    if not field.shape:
        return _typed(name, values.to_numpy(), np.dtype(field.numpy_dtype).type)
    if values.empty:
        return np.empty((0, *(side or 0 for side in field.shape)), dtype=field.numpy_dtype)
    found = [_vector(name, value, field.numpy_dtype) for value in values]
    for value in found:
        fits = len(value.shape) == len(field.shape) and all(
            expected in (None, side) for expected, side in zip(field.shape, value.shape, strict=True)
        )
        if not fits or value.shape != found[0].shape:
            raise InvalidArgumentError(
                f"column {name!r}: a row has shape {list(value.shape)}, expected is {list(field.shape)}, the same for "
                "all rows; make them equal in the transform_spec"
            )
    return as_vectors(found, field.numpy_dtype)


def _vector(name: str, value: Any, declared: Any) -> npt.NDArray[Any]:
    try:
        found = as_vectors(value, declared) if declared in _TEXTS else np.asarray(value)
    except ValueError as error:
        raise InvalidArgumentError(
            f"column {name!r}: a row has arrays of several lengths; make them equal in the transform_spec"
        ) from error
    return _typed(name, found, np.dtype(declared).type)


def _typed(name: str, found: npt.NDArray[Any], declared: Any) -> npt.NDArray[Any]:
    """Gives values the declared type if they are of its kind and it holds them."""
    if declared in _TEXTS:
        if found.dtype.kind == ("U" if declared is np.str_ else "S"):
            return found
        others = [value for value in found.flat if not isinstance(value, _TEXTS[declared])]
        if others:
            raise _other_type(name, others[0], declared)
        return found
    if declared is np.object_:
        return found
    if found.dtype.kind == "O":  # of Python numbers or times
        return _typed_objects(name, found, declared)
    kind = np.dtype(declared)
    if found.dtype.kind in "biu" and kind.kind in "iu":
        limits = np.iinfo(kind)
        outside = found.size and not (limits.min <= int(found.min()) and int(found.max()) <= limits.max)
        if outside:
            value = found.max() if int(found.max()) > limits.max else found.min()
            raise _other_type(name, value, declared)
    elif not (found.dtype.kind == kind.kind == "M" or np.can_cast(found.dtype, kind, "same_kind")):
        raise _other_type(name, found.flat[0] if found.size else None, declared, found.dtype)
    return found if kind.kind == "M" else found.astype(kind, copy=False)


def _typed_objects(name: str, found: npt.NDArray[Any], declared: Any) -> npt.NDArray[Any]:
    for value in found.flat:
        if np.dtype(declared).kind == "M":
            fits = isinstance(value, (date, np.datetime64))
        else:
            fits = isinstance(value, (int, float, np.generic)) and np.asarray(value).dtype.kind in "biuf"
        if not fits:
            raise _other_type(name, value, declared)
    if np.dtype(declared).kind == "M":
        return found.astype("datetime64[us]")
    numbers = np.array(found.tolist()) if found.size else found.astype(declared)
    if numbers.dtype.kind == "O":  # beyond 64 bits
        raise _other_type(name, max(found.flat, key=abs), declared)
    return _typed(name, numbers, declared)


def _other_type(name: str, value: Any, declared: Any, kind: Any = None) -> InvalidArgumentError:
    shown = np.dtype(declared).name if declared not in _TEXTS else _TEXTS[declared].__name__
    return InvalidArgumentError(
        f"transform_spec: column {name!r} is declared as {shown}, and its function gave {value!r} "
        f"({kind or type(value).__name__}); convert it in the function, or declare its type in edit_fields"
    )
