"""A JSON file of annotations, read as a whole; pure."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any, BinaryIO

from ...errors import AnnotationFileError

# Its reader needs 3 to 8 times as much memory; COCO's largest file has 0.45 GB.
MAX_JSON_BYTES = 1_000_000_000


def read_json_file(
    stream: BinaryIO, location: str, kept: Callable[[dict[str, Any]], dict[str, Any]] | None = None
) -> Any:
    """Reads a JSON document in UTF-8; `kept` reduces each of its objects, the inner ones first."""
    size = stream.seek(0, io.SEEK_END)
    stream.seek(0)
    if size > MAX_JSON_BYTES:
        raise AnnotationFileError(
            f"{location} has more than {MAX_JSON_BYTES:,} bytes of JSON, which would not fit into the memory of "
            "its reader; split it (COCO: one file for each split), or write the annotations as JSON lines or Parquet "
            "(layout 'manifest')"
        )

    try:
        text = stream.read().decode("utf-8-sig")  # the bytes are not kept while it is parsed
        return json.loads(text, object_hook=kept)
    except RecursionError:
        raise AnnotationFileError(f"{location}: its JSON values are nested too deeply") from None
    except ValueError as error:  # not UTF-8, not JSON, or a number of more digits than Python converts
        raise AnnotationFileError(f"{location} is not JSON in UTF-8: {error}") from error
