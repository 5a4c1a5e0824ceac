"""How delta-rs wants a location written, and which locations it cannot take."""

from __future__ import annotations

import re

from .data_files import local_form

# delta-rs decodes a path twice, reads a backslash as a slash and refuses control characters. In a URI it reads ? and #
# as a URL's query and fragment. It would open another table, or none.
_MISREAD_PATH = re.compile(r"%[0-9A-Fa-f]{2}|[\\\x00-\x1f\x7f]")
_MISREAD_URI = re.compile(r"%[0-9A-Fa-f]{2}|[?#\\\x00-\x1f\x7f]")
# A write panics, which Python cannot catch as an Exception.
_UNWRITABLE = re.compile(r"[\[\]^|]")


def misread_part(place: str) -> str | None:
    """Returns what of a location delta-rs would read as something else; None if it takes all of it."""
    local = local_form(place)
    found = _MISREAD_URI.search(place) if local is None else _MISREAD_PATH.search(local)
    return None if found is None else found[0]


def unwritable_part(place: str) -> str | None:
    """Returns what of a location keeps delta-rs from a write there, though it can read; None if it can write."""
    found = _UNWRITABLE.search(place)
    return None if found is None else found[0]


def delta_uri(place: str) -> str:
    """Writes a location as delta-rs takes it; `dbfs:/` is the path where Databricks mounts it."""
    local = local_form(place)
    if local is not None:
        return local
    # Its gcs:// is another client, which takes none of the options.
    return f"gs:{place.partition(':')[2]}" if place.lower().startswith("gcs:") else place
