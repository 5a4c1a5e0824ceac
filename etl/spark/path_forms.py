"""One form of a local file's path: the `file://` URI under which folders are listed, whichever tool wrote the path.

Spark's sources write `file:/a b.jpg` and `file:///a%20b.jpg`, users `/a b.jpg`; a table's rows may have any of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column

_IN_FORM = "^file:///[A-Za-z0-9_.~/%-]*$"
_LOCAL = "^(/|file:/[^/]|file:///)"
_START = "^(file://)?(file:)?"
_BAD_ESCAPE = "%($|[^0-9A-Fa-f]|.$|.[^0-9A-Fa-f])"


def column_in_one_form(name: str) -> Column:
    """Writes the paths of local files as `walk.local_uri` does; what is not a local path stays as it is.

    A percent sign is an escape after `file:///` alone, where two digits follow each.
    """
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
