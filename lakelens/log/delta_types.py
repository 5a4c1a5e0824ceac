"""Delta's names, types and values in Arrow's terms, names matched as Spark matches them; pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from ..errors import DataFileError
from .snapshot import PHYSICAL_NAME


def spelled_in_file(wanted: Iterable[str], names: Iterable[str], location: str) -> dict[str, str]:
    """Finds names among those of a data file; gives the file's spelling of each that it has."""
    spellings: dict[str, list[str]] = {}
    for name in names:
        spellings.setdefault(name.lower(), []).append(name)
    found = {name: spellings[name.lower()] for name in wanted if name.lower() in spellings}
    for name, several in found.items():
        if len(several) > 1:
            raise DataFileError(
                f"{location} has the names {' and '.join(map(repr, several))} for column {name!r}; Spark refuses this "
                "file too. Write it again with one of them"
            )
    return {name: one for name, (one,) in found.items()}


# Delta's types of whole numbers.
INTEGERS = ("byte", "short", "integer", "long")
# How a partition value, which Delta's log keeps as text, becomes the value of its column.
_FROM_TEXT: dict[str, Any] = {
    "string": str,
    "byte": int,
    "short": int,
    "integer": int,
    "long": int,
    "float": float,
    "double": float,
    "boolean": lambda text: text.lower() == "true",
    "date": date.fromisoformat,
    "timestamp": lambda text: datetime.fromisoformat(text.replace("Z", "+00:00")),
    "timestamp_ntz": datetime.fromisoformat,
    "binary": lambda text: text.encode("utf-8", "surrogateescape"),
}
_ARROW_TYPES = {
    "string": pa.string(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


def parse_partition_value(text: str, declared: str) -> Any:
    """Reads a partition value from the log's text, by the column's Delta type."""
    return Decimal(text) if declared.startswith("decimal") else _FROM_TEXT[declared](text)


def arrow_type(declared: Any) -> pa.DataType:
    """Gives the Arrow type of a Delta type, a name or JSON of a nested one; null for an unknown type."""
    if isinstance(declared, str):
        return arrow_type(json.loads(declared)) if declared.startswith("{") else _arrow_type_of_name(declared)
    if declared["type"] == "struct":
        return pa.struct([(field["name"], arrow_type(field["type"])) for field in declared["fields"]])
    if declared["type"] == "array":
        return pa.list_(arrow_type(declared["elementType"]))
    return pa.map_(arrow_type(declared["keyType"]), arrow_type(declared["valueType"]))


def _arrow_type_of_name(declared: str) -> pa.DataType:
    if declared in _ARROW_TYPES:
        return _ARROW_TYPES[declared]
    if declared.startswith("decimal("):
        precision, scale = declared[len("decimal(") : -1].split(",")
        return pa.decimal128(int(precision), int(scale))
    return pa.null()


def type_name(declared: Any) -> str:
    """Writes a Delta type for a message, as SQL does: `struct<origin:string,data:binary>`."""
    if isinstance(declared, str):
        return type_name(json.loads(declared)) if declared.startswith("{") else declared
    if declared["type"] == "struct":
        fields = [f"{field['name']}:{type_name(field['type'])}" for field in declared["fields"]]
        return f"struct<{','.join(fields)}>"
    if declared["type"] == "array":
        return f"array<{type_name(declared['elementType'])}>"
    return f"map<{type_name(declared['keyType'])},{type_name(declared['valueType'])}>"


def conform(column: pa.ChunkedArray, declared: str, location: str) -> pa.ChunkedArray:
    """Gives a column of a data file the table's types and names of fields, and nulls where its structs lack them."""
    if not declared.startswith("{"):
        return column.cast(arrow_type(declared)) if _is_narrower(column.type, declared) else column
    kind = json.loads(declared)
    if PHYSICAL_NAME in declared or not _has_form_of(column.type, kind):
        column = pa.chunked_array([_conformed(chunk, kind, location) for chunk in column.chunks] or column)
    if _has_form_of(column.type, kind):
        return column
    return pa.chunked_array([pa.array(column.to_pylist(), arrow_type(kind))])


def _is_narrower(found: pa.DataType, declared: str) -> bool:
    """Returns whether numbers or dates were written before their column or field was widened."""
    wanted = arrow_type(declared)
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_date)
    return found != wanted and not pa.types.is_null(wanted) and any(is_kind(found) for is_kind in kinds)


def _has_form_of(found: pa.DataType, declared: Any) -> bool:
    """Returns whether an Arrow type has the fields of a Delta type, and no narrower numbers and dates."""
    if isinstance(declared, str):
        return not _is_narrower(found, declared)
    if declared["type"] == "struct":
        fields = {found.field(i).name: found.field(i).type for i in range(found.num_fields)}
        wanted = {field["name"]: field["type"] for field in declared["fields"]}
        return fields.keys() == wanted.keys() and all(_has_form_of(fields[name], wanted[name]) for name in wanted)
    if declared["type"] == "array":
        return _has_form_of(found.value_type, declared["elementType"])
    pairs = ((found.key_type, declared["keyType"]), (found.item_type, declared["valueType"]))
    return all(_has_form_of(kind, wanted) for kind, wanted in pairs)


def _conformed(array: pa.Array, declared: Any, location: str) -> pa.Array:
    """Gives what a column holds the table's types, and its fields the names that column mapping or case changed."""
    if isinstance(declared, str):
        return array.cast(arrow_type(declared)) if _is_narrower(array.type, declared) else array
    mask = array.is_null()
    if declared["type"] == "struct":
        stored = {array.type.field(i).name: array.field(i) for i in range(array.type.num_fields)}
        own = {field["name"]: field["metadata"].get(PHYSICAL_NAME, field["name"]) for field in declared["fields"]}
        found = spelled_in_file(own.values(), stored, location)
        present = [field for field in declared["fields"] if own[field["name"]] in found]
        if not present:
            return array
        names = [field["name"] for field in present]
        parts = [
            _conformed(stored[found[own[name]]], field["type"], location)
            for name, field in zip(names, present, strict=True)
        ]
        return pa.StructArray.from_arrays(parts, names=names, mask=mask)
    if declared["type"] == "map":
        keys = _conformed(array.keys, declared["keyType"], location)
        items = _conformed(array.items, declared["valueType"], location)
        return pa.MapArray.from_arrays(_offsets(array), keys, items)
    return pa.ListArray.from_arrays(_offsets(array), _conformed(array.values, declared["elementType"], location))


def _offsets(array: pa.Array) -> pa.Array:
    """Returns the offsets of a list or map; null where the entry is null."""
    import pyarrow.compute as pc

    absent = pa.concat_arrays([array.is_null(), pa.array([False])])
    return pc.if_else(absent, pa.scalar(None, pa.int32()), array.offsets)
