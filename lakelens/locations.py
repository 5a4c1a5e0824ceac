"""Where tables and files are: paths, URIs and catalog names, and how each reader wants them written."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote

from .errors import InvalidArgumentError

# Two or three identifiers joined by dots: schema.table or catalog.schema.table. Others than words are in backticks.
_WORD = r"[A-Za-z_]\w*"
_PART = rf"{_WORD}|`(?:[^`/]|``)+`"
_TABLE_NAME = re.compile(rf"(?:{_PART})(?:\.(?:{_PART})){{1,2}}")
_DELTA_PATH = re.compile(r"delta\.`((?:[^`]|``)+)`", re.IGNORECASE)
_WITHOUT_BACKTICKS = re.compile(r"[\w-]+(?:\.[\w-]+){1,2}")
_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:")


def table_and_version(text: str | Path) -> tuple[str, str | None]:
    """Splits `table@version` at its last `@`; without a version it is None."""
    # Not at one before a `/` or in abfss://container@account..., nor in a text under which something exists.
    whole = str(text)
    table, _, version = whole.rpartition("@")
    is_account = "://" in table and "/" not in table.partition("://")[2]
    if (
        not table
        or not version
        or set("/`") & set(version)
        or is_account
        or (not has_scheme(whole) and Path(whole).exists())
    ):
        return whole, None
    return table, version


def is_table_name(location: str) -> bool:
    """Returns whether `location`, as `absolute` gives it, is `schema.table` or `catalog.schema.table`, not a path."""
    return _TABLE_NAME.fullmatch(location) is not None


def name_parts(name: str) -> list[str]:
    """Returns the parts of a table's name as SQL has them: words, and others in backticks."""
    quoted = re.findall(_PART, name)
    return [part[1:-1] if re.fullmatch(f"`{_WORD}`", part) else part for part in quoted]


def unquoted(part: str) -> str:
    """Returns a part of a name without backticks, as the catalog has it."""
    return part[1:-1].replace("``", "`") if part.startswith("`") else part


def with_suffix(location: str, suffix: str) -> str:
    """Names the table that belongs to another one: its path, or the last part of its name, with more at the end."""
    if is_table_name(location) and location.endswith("`"):
        return f"{location[:-1]}{suffix}`"
    return location.rstrip("/") + suffix


def has_scheme(location: str) -> bool:
    """Returns whether `location` starts with a URI scheme such as `s3a:` or `file:`."""
    return _SCHEME.match(location) is not None


def scheme_of(location: str) -> str:
    """The scheme of a URI, such as `s3a`, in lower case; of a path, what stands before its first colon."""
    return location.split(":", 1)[0].lower()


def absolute(location: str | Path) -> str:
    """Makes a table's local path absolute, as `absolute_path` does, and leaves URIs and catalog names as they are."""
    # What exists is a path, even if it looks like `schema.table`. A name loses the backticks that it does not need.
    if not isinstance(location, str) or Path(location).exists():
        return absolute_path(location)
    if is_table_name(location):
        return ".".join(name_parts(location))
    path = _DELTA_PATH.fullmatch(location)
    if path is not None:
        return absolute_path(path[1].replace("``", "`"))
    if _WITHOUT_BACKTICKS.fullmatch(location):
        quoted = ".".join(part if re.fullmatch(_WORD, part) else f"`{part}`" for part in location.split("."))
        raise InvalidArgumentError(
            f"{location!r} may be a path, where nothing is yet, or a name in the catalog: write ./{location} for the "
            f"path, and {quoted} for the name"
        )
    return absolute_path(location)


def absolute_path(location: str | Path) -> str:
    """Makes a local path absolute and leaves URIs as they are; catalog names are not recognised."""
    # One place on disk has one spelling: paths are keys of image tables, and two would store every image twice.
    text = str(location)
    if not text.strip():
        raise InvalidArgumentError("a location is empty; give a path, a URI or schema.table")
    if text[:5].lower() == "file:":
        # Not parsed as a URL: ? and # are letters of a file's name, to Spark too.
        return os.path.realpath(unquote(_without_host(text)))
    if has_scheme(text):
        return text
    return os.path.realpath(Path(text).expanduser())


def folder_of(location: str | Path) -> str:
    """Returns the folder that holds a file, as `absolute_path` writes it; of a URI, all before the last slash."""
    # A link that is the file itself is not resolved: what a file refers to lies next to the name that was given.
    text = str(location)
    if has_scheme(text) and text[:5].lower() != "file:":
        return text.rpartition("/")[0] or "/"
    path = Path(unquote(_without_host(text))) if has_scheme(text) else Path(text).expanduser()
    return os.path.realpath(path.parent)


def locate(folder: str, path: str) -> str:
    """Joins a table's location and a file's path from its log; absolute paths and URIs stand for themselves."""
    if path.startswith("file:"):
        return absolute(path)
    if has_scheme(path) or path.startswith("/"):
        return path
    return f"{folder.rstrip('/')}/{path}"


def _without_host(uri: str) -> str:
    path = uri[len("file:") :]
    if path.startswith("//"):
        host, slash, rest = path[2:].partition("/")
        if host.lower() not in ("", "localhost"):
            raise InvalidArgumentError(
                f"{uri} names the machine {host!r}, and only files of this one can be used; write "
                f"file:/{host}{slash}{rest} if that is a folder"
            )
        path = slash + rest
    return path


def without_password(text: str) -> str:
    """Writes a store's URI, or a text with URIs, for people and logs: *** stands for a password."""
    return re.sub(r"(?<=://)([^/?#@:\s]*):[^/?#\s]*@", r"\1:***@", text)


def require_writable(name: str, folder: Path) -> None:
    """Checks that files can be written into a folder, which may not exist yet, before work that may take hours."""
    # os.path.exists answers False below a file or an unreadable folder, where Path.exists may raise.
    above = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.exists(path))  # noqa: PTH110
    if not above.is_dir():
        raise InvalidArgumentError(f"{name} = {str(folder)!r} cannot be written: {above} is a file; give a folder")
    if not os.access(above, os.W_OK | os.X_OK):
        raise InvalidArgumentError(
            f"{name} = {str(folder)!r} cannot be written: {above} is read-only for you; give another folder"
        )
