"""Files whose pixels are whole, and that a decoder refuses for metadata beyond its limits or no end marker; pure."""

from __future__ import annotations

import struct
from typing import NamedTuple

METADATA_SKIPPED = "metadata_skipped"
END_MARKER_MISSING = "end_marker_missing"

_PNG = b"\x89PNG\r\n\x1a\n"
# Texts and the colour profile, whose sizes Pillow limits.
_METADATA = (b"tEXt", b"zTXt", b"iTXt", b"iCCP")
_CHUNK = struct.Struct(">I4s")
_CHECKSUM_BYTES = 4
_JPEG, _END = b"\xff\xd8", b"\xff\xd9"


class Repaired(NamedTuple):
    """A file that may decode."""

    data: bytes  # Its bytes
    note: str  # What was done: `METADATA_SKIPPED` or `END_MARKER_MISSING`


def repaired(data: bytes) -> Repaired | None:
    """Takes away a PNG's texts and profile, or adds a JPEG's end marker; None for other files.

    A JPEG is taken only if all of its rows are there: libjpeg fills up what is missing, and says so in a warning.
    """
    if data.startswith(_PNG):
        return Repaired(_without_metadata(data), METADATA_SKIPPED)
    if data.startswith(_JPEG) and not data.endswith(_END):
        ended = data + (_END[1:] if data.endswith(_END[:1]) else _END)
        return Repaired(ended, END_MARKER_MISSING) if _has_all_rows(ended) else None
    return None


def _without_metadata(data: bytes) -> bytes:
    """Leaves out chunks of metadata; from a chunk on that is cut off, everything stays."""
    kept, position = [data[: len(_PNG)]], len(_PNG)
    while position + _CHUNK.size <= len(data):
        length, kind = _CHUNK.unpack_from(data, position)
        end = position + _CHUNK.size + length + _CHECKSUM_BYTES
        if kind not in _METADATA or end > len(data):
            kept.append(data[position:end])
        position = end
    kept.append(data[position:])
    return b"".join(kept)


def _has_all_rows(data: bytes) -> bool:
    try:
        import simplejpeg
    except ImportError:
        return False
    try:
        simplejpeg.decode_jpeg(data, strict=True)
    except ValueError:
        return False
    return True
