"""Where tables and files are: paths, URIs and catalog names, and how each reader wants them written."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote, unquote, urlparse

from .errors import InvalidArgumentError

# One to three identifiers joined by dots: table, schema.table or catalog.schema.table.
_TABLE_NAME = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*){1,2}$")
_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:")


def is_table_name(location: str) -> bool:
    """Tells whether `location` is `schema.table` or `catalog.schema.table` rather than a path."""
    return "/" not in location and _TABLE_NAME.match(location) is not None


def has_scheme(location: str) -> bool:
    """Tells whether `location` starts with a URI scheme such as `s3a:` or `file:`."""
    return _SCHEME.match(location) is not None


def absolute(location: str | Path) -> str:
    """Makes a local path absolute and leaves URIs and table names as they are.

    `file:` URIs become plain paths, so that one place on disk has one spelling.

    Raises:
        InvalidArgumentError: If `location` is empty.
    """
    text = str(location)
    if not text.strip():
        raise InvalidArgumentError("a location is empty; give a path, a URI or schema.table")
    if text.startswith("file:"):
        return unquote(urlparse(text).path)
    if has_scheme(text) or is_table_name(text):
        return text
    return str(Path(text).expanduser().absolute())


def file_uri(path: str | Path) -> str:
    """Writes a local path as a `file://` URI with spaces, % and non-ASCII characters quoted."""
    return "file://" + quote(str(Path(path).expanduser().absolute()))
