"""One form of a local file's path: the `file://` URI under which folders are listed, whoever wrote the path.

Spark's sources write `file:/a b.jpg` and `file:///a%20b.jpg`, users `/a b.jpg`; a table's rows may have any of these.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from ..files.walk import local_uri

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column

# Read by Python, Java and pyarrow (which knows no look-around) alike.
_IN_FORM = "^file:///[A-Za-z0-9_.~/%-]*$"
_LOCAL = "^(/|file:/[^/]|file:///)"
_START = "^(file://)?(file:)?"
_BAD_ESCAPE = "%($|[^0-9A-Fa-f]|.$|.[^0-9A-Fa-f])"


def in_one_form(path: str) -> str:
    """Writes the path of a local file as `walk.local_uri` does; what is no local path stays as it is.

    A percent sign is an escape after `file:///` alone, where two digits follow each.
    """
    if re.search(_IN_FORM, path) or not re.search(_LOCAL, path):
        return path
    name = re.sub(_START, "", path)
    is_quoted = path.startswith("file:///") and not re.search(_BAD_ESCAPE, name)
    return local_uri(unquote_to_bytes(name) if is_quoted else name.encode("utf-8", "surrogateescape"))


def column_in_one_form(name: str) -> Column:
    """`in_one_form` of a column of Spark, without a Python worker."""
    from pyspark.sql import functions as F

    path = F.col(name)
    bare = F.regexp_replace(path, _START, "")
    is_quoted = path.startswith("file:///") & ~bare.rlike(_BAD_ESCAPE)
    # Java writes and reads the escapes of web forms, which differ from those of URIs in these characters.
    raw = F.when(is_quoted, F.url_decode(F.replace(bare, F.lit("+"), F.lit("%2B")))).otherwise(bare)
    quoted = F.url_encode(raw)
    for found, wanted in (("%2F", "/"), ("+", "%20"), ("*", "%2A"), ("%7E", "~")):
        quoted = F.replace(quoted, F.lit(found), F.lit(wanted))
    return F.when(path.rlike(_IN_FORM) | ~path.rlike(_LOCAL), path).otherwise(F.concat(F.lit("file://"), quoted))


def array_in_one_form(paths: pa.ChunkedArray) -> pa.ChunkedArray:
    """`in_one_form` of an array of paths, nearly all of which are in it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    is_other = pc.and_not(pc.match_substring_regex(paths, _LOCAL), pc.match_substring_regex(paths, _IN_FORM))
    if not pc.any(is_other).as_py():
        return paths
    return pa.chunked_array([pa.array([None if path is None else in_one_form(path) for path in paths.to_pylist()])])
