"""References to images as annotation files write them, resolved to the paths that listings use; pure."""

from __future__ import annotations

import functools
import os
import posixpath
import re
from collections.abc import Sequence
from urllib.parse import unquote, urlsplit

from ...errors import AnnotationFileError, InvalidArgumentError
from ...locations import has_scheme
from ..files import local_path, local_uri

# A drive's letter is not an URI scheme: those of object stores have two letters or more.
_WINDOWS_ABSOLUTE = re.compile(r"^([A-Za-z]:|\\\\)")
_MAX_LENGTH = 4096


def resolve_reference(reference: object, root: str) -> str:
    """Resolves what an annotation file calls an image; relative references are joined to `root`, lexically.

    A backslash separates folders as `/` does. A percent sign is a percent sign, except in a `file:` URI.
    """
    try:
        path = _resolved(reference, root)
        path.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(
            f"{_short(reference)} holds half a surrogate pair, which is not a character: write the whole one, or a "
            "file: URI with the bytes of the name as %XX"
        ) from None
    return path


def _resolved(reference: object, root: str) -> str:
    text = reference.strip() if isinstance(reference, str) else ""
    if not text:
        raise InvalidArgumentError(f"{_short(reference)} is not a path: give a path below {root}, or a URI")
    if len(text) > _MAX_LENGTH or any(ord(character) < 32 for character in text):
        raise InvalidArgumentError(f"{_short(text)} is too long for a path or holds control characters")
    if _WINDOWS_ABSOLUTE.match(text):
        raise InvalidArgumentError(
            f"{_short(text)} is an absolute path of Windows, which means nothing here: write it relative to {root}"
        )
    if text.startswith("file:"):
        return local_uri(in_one_spelling(posixpath.normpath(local_path(text)), root))
    if has_scheme(text):
        return text
    text = text.replace("\\", "/")
    if has_scheme(root) and not root.startswith("file:"):
        return _below_uri(root, text)
    path = text.encode("utf-8", "surrogateescape")
    if text.startswith("/"):
        return local_uri(in_one_spelling(posixpath.normpath(path), root))
    return local_uri(posixpath.normpath(posixpath.join(_local(root), path)))


def in_one_spelling(path: bytes, root: str) -> bytes:
    """Resolves the links in the folder of a file; the file may be a link, and those below `root` keep their names."""
    folder, slash, name = path.rpartition(b"/")
    is_elsewhere = has_scheme(root) and not root.startswith("file:")
    return _folder_in_one_spelling(folder, b"" if is_elsewhere else _local(root).rstrip(b"/")) + slash + name


@functools.lru_cache(maxsize=10_000)
def _folder_in_one_spelling(folder: bytes, root: bytes) -> bytes:
    if root and (folder + b"/").startswith(root + b"/"):
        return folder
    parts = folder.split(b"/")
    for count in range(2, len(parts) + 1) if root else ():
        if os.path.realpath(b"/".join(parts[:count])) == root:
            return b"/".join([root, *parts[count:]])
    return os.path.realpath(folder or b"/").rstrip(b"/")


def _local(root: str) -> bytes:
    return local_path(root) if root.startswith("file:") else os.fsencode(root)


def relative_reference(path: str, root: str) -> str | None:
    """Returns a listed path relative to the source folder, unquoted; None when it lies elsewhere."""
    if path.startswith("file:"):
        folder, here = local_path(root).rstrip(b"/") + b"/", local_path(path)
        return os.fsdecode(here[len(folder) :]) if here.startswith(folder) else None
    prefix = root.rstrip("/") + "/"
    return path[len(prefix) :] if path.startswith(prefix) else None


def without_drive(reference: str) -> str:
    """Takes a drive or a server of Windows away: images are not there, but may be found by their names."""
    return re.sub(r"^(?:[A-Za-z]:|\\\\[^\\]+)(?=[\\/])", "", reference)


def name_in_path(path: str) -> str:
    """Returns the base name in a listed path, with `%XX` decoded: what is the same however a tool has written it."""
    return decoded_path(path).rpartition("/")[2].encode("utf-8", "replace").decode()


def decoded_path(path: str) -> str:
    """Returns a listed path as the file system has it, with `%XX` decoded that a tool has written into it."""
    plain = os.fsdecode(local_path(path)) if path.startswith("file:") else path
    return unquote(plain, errors="surrogateescape").replace("\\", "/")


def images_by_name(references: Sequence[str], images: Sequence[str], others: int = 0) -> dict[str, str]:
    """Finds images of one base name that are not where annotations say; returns their paths by the annotated ones.

    Both are paths without their own counterpart; `others` counts images of the name that have one.
    """
    # The image whose decoded path is the annotation's is meant; else the only one, by the only annotation left.
    decoded = {decoded_path(path): path for path in images}
    found = {path: decoded[decoded_path(path)] for path in references if decoded_path(path) in decoded}
    lacking = [path for path in references if path not in found]
    taken = set(found.values())
    left = [path for path in images if path not in taken]
    if lacking and left and (len(lacking) + len(left) > 2 or others + len(taken)):
        raise AnnotationFileError(
            f"{', '.join(lacking[:3])}: no such image, and which one is meant is not clear; of its name there "
            f"{'are' if len(left) > 1 else 'is'} {', '.join(left[:3])}. Correct the names of images in the annotations"
        )
    return found | dict(zip(lacking, left, strict=False))


def _below_uri(root: str, text: str) -> str:
    parts = urlsplit(root, allow_fragments=False)
    has_authority = root[len(parts.scheme) :].startswith("://")
    start = f"{parts.scheme}://{parts.netloc}" if has_authority else f"{parts.scheme}:"
    return start + posixpath.normpath(posixpath.join(root[len(start) :] or "/", text))


def _short(value: object) -> str:
    return repr(value)[:100] if isinstance(value, str) or value is None else f"a value of type {type(value).__name__}"
