"""The columns of a feed as Petastorm describes them: each one's NumPy type and shape, and which have no tensor form."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import numpy as np
import numpy.typing as npt

from .... import petastorm_names
from ....errors import InvalidArgumentError, MissingDependencyError
from ....options import near_miss
from ..columns import NUMPY_TYPES, chosen_columns, lacks_values
from ..plan.feed_plan import FeedPlan, naming_file
from ..reading import FileLayout, OpenRowGroup

petastorm_names.check_loaded()
try:
    with warnings.catch_warnings():
        # Petastorm 0.13 imports pyarrow's legacy file systems, each of which warns.
        warnings.simplefilter("ignore")
        from petastorm.ngram import NGram
        from petastorm.transform import TransformSpec, transform_schema
        from petastorm.unischema import Unischema, UnischemaField
except ImportError as error:
    raise MissingDependencyError(
        f"Petastorm's readers and transforms need Petastorm, which cannot be imported ({error}): "
        "pip install 'lakelens[petastorm]'"
    ) from error

__all__ = ["NGram", "TransformSpec", "Unischema", "UnischemaField", "transform_schema"]


# Only the first rows of this number of files are read: reading all arrays would cost as much as an epoch.
_FILES = 4
_ROWS = 1024


def uneven_columns(plan: FeedPlan, columns: Sequence[str]) -> set[str]:
    """Finds columns of arrays of simple values that differ in length or have nulls, in the first rows of some files."""
    kinds = {name: json.loads(plan.schema[name]) for name in columns if plan.schema[name].startswith("{")}
    arrays = [name for name, kind in kinds.items() if isinstance(kind.get("elementType"), str)]
    shapes: dict[str, set[int | None]] = {}
    with_rows = np.flatnonzero(plan.files.rows).tolist() if arrays else []
    for file in with_rows[:: max(1, len(with_rows) // _FILES)][:_FILES]:
        with naming_file(plan, file):
            layout = FileLayout.of(plan, file)
            row_group = next(number for number, rows in enumerate(layout.rows) if rows)
            with closing(OpenRowGroup(plan, file, layout, row_group, arrays)) as stored:
                group = stored.read(0, min(_ROWS, stored.rows))
                kept = None if layout.kept is None else layout.kept[row_group][: len(group.table)]
                for name in arrays:
                    values = group.values(name)
                    rows = range(len(values)) if kept is None else [row for row in kept.tolist() if row < len(values)]
                    shapes.setdefault(name, set()).update(length_of(values[row]) for row in rows)
    return {name for name, found in shapes.items() if len(found) > 1 or None in found}


def length_of(value: Sequence[object] | None) -> int | None:
    """Gives the length of an array; None for null, and for an array with a null."""
    return None if value is None or None in value else len(value)


# Delta type -> the type that Petastorm gives such a column.
_TYPES: dict[str, Any] = {name: np.dtype(kind).type for name, kind in NUMPY_TYPES.items()}
_TYPES |= {"string": np.str_, "binary": np.bytes_}
# Stands for a type that no tensor has: a transform may read such a column, and has to replace it or take it away.
_NESTED = np.object_
# Types that Petastorm gives to TensorFlow as others.
_TENSOR_TYPES = {
    np.str_: "string",
    np.bytes_: "string",
    np.datetime64: "int64",
    np.uint16: "int32",
    np.uint32: "int64",
}
# PyTorch has no tensors of these.
_NOT_IN_TORCH = (np.str_, np.bytes_, np.datetime64)


def matching_columns(plan: FeedPlan, columns: Sequence[Any] | None, transform: Any = None) -> list[str]:
    """Finds the columns, in the table's order, that names, regular expressions or fields of a Unischema mean.

    None means all that have a tensor form, or a transform makes one of.
    """
    if isinstance(columns, NGram):
        raise InvalidArgumentError(
            "columns=NGram(...): rows come in shuffled order, so windows of neighbouring rows do not exist; give "
            "names of columns, and build the windows as rows of the table"
        )
    known = plan.schema
    if columns is not None and not isinstance(columns, str):
        meant: list[str] = []
        for name in (str(getattr(column, "name", column)) for column in columns):
            meant += [name] if name in known else [other for other in known if _matches(name, other)] or [name]
        columns = sorted(set(meant), key=[*known, *meant].index)
    uneven = _left_uneven(plan, transform) if columns is None else set[str]()

    def has_tensors(name: str) -> bool:
        is_nested = _field(name, known[name]).numpy_dtype is _NESTED
        return not is_nested and name not in uneven and not lacks_values(known, name)

    return chosen_columns(plan, columns, has_tensors)


def _left_uneven(plan: FeedPlan, transform: Any) -> set[str]:
    """Finds columns of arrays without one length that a transform does not change."""
    return uneven_columns(plan, [name for name in plan.schema if name not in _edited(transform)])


def _edited(transform: Any) -> set[str]:
    return {field[0] for field in transform.edit_fields} if transform is not None else set()


def schema_of(plan: FeedPlan, columns: Sequence[str], transform: Any) -> tuple[Any, Any]:
    """Describes the columns before and after a TransformSpec, or None, as two of Petastorm's Unischemas."""
    stored = Unischema("feed", [_field(name, plan.schema[name]) for name in columns])
    given = stored
    if transform is not None:
        edited = [field[0] for field in transform.edit_fields]
        for part in ("removed_fields", "selected_fields"):
            for name in getattr(transform, part) or ():
                if name not in columns and name not in edited:
                    raise InvalidArgumentError(
                        f"transform_spec: {part} names {name!r}, which is not one of the columns"
                        f"{near_miss(name, [*columns, *edited])}: {', '.join(columns)}"
                    )
        given = transform_schema(stored, transform)
    for name, field in given.fields.items():
        if field.numpy_dtype is _NESTED:
            raise InvalidArgumentError(
                f"column {name!r} of {plan.location} is {plan.schema[name]}, which has no tensor form; leave it "
                "out of columns, or make numbers of it with a transform_spec"
            )
    if not given.fields:
        raise InvalidArgumentError("transform_spec: no column is left after it")
    return stored, given


def torch_columns(plan: FeedPlan, transform: Any) -> list[str]:
    """Lists the columns of a feed that PyTorch has tensors for as a transform leaves them; warns of the others."""
    edited, uneven = _edited(transform), _left_uneven(plan, transform)

    def has_tensors(name: str) -> bool:
        kind = _field(name, plan.schema[name]).numpy_dtype
        has_none = kind in (*_NOT_IN_TORCH, _NESTED) or name in uneven or lacks_values(plan.schema, name)
        return name in edited or not has_none

    return chosen_columns(plan, None, has_tensors)


def require_torch_types(schema: Any) -> None:
    """Checks that PyTorch has tensors for all fields."""
    refused = [name for name, field in schema.fields.items() if field.numpy_dtype in _NOT_IN_TORCH]
    if refused:
        raise InvalidArgumentError(
            f"PyTorch has no tensors of text, bytes, decimals and times: {', '.join(refused)}; leave them out with "
            "columns=[...], or make numbers of them with a transform_spec, such as lakelens.decode_images(height, "
            "width) of images"
        )


def tensor_specs(schema: Any) -> Any:
    """Describes items with the fields of a Unischema to TensorFlow, of Petastorm's types: times are int64, in ns."""
    import tensorflow as tf

    return schema.make_namedtuple(
        **{
            name: tf.TensorSpec(
                (None, *field.shape), _TENSOR_TYPES.get(field.numpy_dtype) or np.dtype(field.numpy_dtype).name
            )
            for name, field in schema.fields.items()
        }
    )


def as_tensors(item: Any, schema: Any) -> Any:
    """Gives an item of a reader the types that `tensor_specs` describes."""
    times = [name for name, field in schema.fields.items() if field.numpy_dtype is np.datetime64]
    return item._replace(**{name: getattr(item, name).astype("datetime64[ns]").astype(np.int64) for name in times})


def as_vectors(rows: Sequence[Any], kind: Any) -> npt.NDArray[Any]:
    """Makes one array of rows of equal shape; text and bytes as objects, which keep trailing zeros."""
    return np.asarray(rows, dtype=np.object_ if kind in (np.str_, np.bytes_) else kind)


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.fullmatch(pattern, name) is not None
    except re.error:
        return False


def _field(name: str, declared: str) -> Any:
    if declared.startswith("{"):
        nested = json.loads(declared)
        element = nested.get("elementType") if nested["type"] == "array" else None
        kind = _TYPES.get(element, _NESTED) if isinstance(element, str) else _NESTED
        return UnischemaField(name, kind, () if kind is _NESTED else (None,), None, True)
    # Petastorm's TensorFlow adapter fails on an array of Decimals.
    kind = np.str_ if declared.startswith("decimal") else _TYPES.get(declared, _NESTED)
    return UnischemaField(name, kind, (), None, True)
