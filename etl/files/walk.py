"""Walks folders of a local or mounted file system; skipped entries are listed with a reason."""

from __future__ import annotations

import errno
import operator
import os
import re
import stat
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

# What the files that Pillow and pillow-heif decode are called. Files with other names are skipped without being read.
_SUFFIXES = """
apng avif avifs blp bmp bw cur dcx dds dib fit fits flc fli ftc ftu gbr gif heic heif hif icb icns ico im imt j2c j2k
jfif jp2 jpc jpe jpeg jpf jpg jpx mpo msp pbm pcd pcx pfm pgm png pnm ppm psd pxr qoi ras rgb rgba sgi spi spider sun
tga tif tiff vda vst webp xbm xpm
"""
IMAGE_SUFFIXES = frozenset(_SUFFIXES.split())
_PLAIN_PATH = re.compile(rb"[A-Za-z0-9_.~/-]*")
_HIDDEN_NAMES = frozenset({"thumbs.db", "desktop.ini", "__macosx", "@eadir", "$recycle.bin"})

HIDDEN = "hidden"
# Spark reads no file of such a name; on local and mounted folders, which it does not read, they are images like others.
HIDDEN_BY_SPARK = "name_starts_with_underscore"
NOT_AN_IMAGE_NAME = "not_an_image_name"
NO_CLASS_FOLDER = "no_class_folder"
CLASS_NAME_UNUSABLE = "class_name_unusable"
BROKEN_LINK = "broken_link"
PATH_TOO_LONG = "path_too_long"
UNREADABLE_FILE = "unreadable_file"
LINK_LOOP = "link_loop"
UNREADABLE_FOLDER = "unreadable_folder"
SPECIAL_FILE = "special_file"
# An image outside the folders that the annotations of its source mean.
OTHER_FOLDER = "other_folder"
# Files below such a path were not read, so they do not count as removed.
NOT_LOOKED_INTO = (BROKEN_LINK, PATH_TOO_LONG, UNREADABLE_FILE, UNREADABLE_FOLDER)
# The reason by error of the file system. A circular link has no target.
_REASONS = {
    errno.ENOENT: BROKEN_LINK,
    errno.ENOTDIR: BROKEN_LINK,
    errno.ELOOP: BROKEN_LINK,
    errno.ENAMETOOLONG: PATH_TOO_LONG,
}


class Entry(NamedTuple):
    """One file, or one thing that was skipped."""

    path: bytes  # Absolute path as bytes
    parts: tuple[bytes, ...]  # The path's components below the folder that was walked
    length: int = 0  # Size in bytes
    modified_ms: int = 0  # Time of the last change in milliseconds since 1970
    ignored: str | None = None  # Why it is skipped, or None


def is_hidden(name: str) -> bool:
    """Returns whether a file or folder is the operating system's rather than the user's."""
    return name.startswith(".") or name.lower() in _HIDDEN_NAMES


def has_suffix(name: str, suffixes: frozenset[str]) -> bool:
    """Returns whether a file's name ends with a dot and one of `suffixes`, which are in lower case."""
    return "." in name and name.rpartition(".")[2].lower() in suffixes


def local_uri(path: bytes) -> str:
    """Writes a local path as a `file://` URI: spaces, % and bytes beyond ASCII quoted, so that any name survives."""
    # Most paths need no quoting, and quote() takes long to find that out.
    return "file://" + (path.decode("ascii") if _PLAIN_PATH.fullmatch(path) else quote(path))


def local_path(uri: str) -> bytes:
    """Reads back what `local_uri` wrote; also takes the `file:/path` that Hadoop writes."""
    return unquote_to_bytes(re.sub(r"^file:(//)?(?=/)", "", uri))


def folder_id(path: bytes) -> frozenset[tuple[int, int]]:
    """Returns device and inode of a folder, as `visit` takes them; nothing where it cannot be looked at."""
    try:
        return frozenset({_device_and_inode(path)})
    except OSError:
        return frozenset()


def _device_and_inode(folder: bytes) -> tuple[int, int]:
    status = os.stat(folder)  # noqa: PTH116  bytes: pathlib takes none
    return status.st_dev, status.st_ino


def visit(
    path: bytes,
    parts: tuple[bytes, ...],
    look: Callable[[], os.stat_result],
    above: frozenset[tuple[int, int]],
    suffixes: frozenset[str],
) -> Iterator[Entry]:
    """Yields one file, or every file below one folder, and what was skipped.

    Symbolic links are followed; a link that leads back to a folder above itself is skipped as a loop.
    """
    name = os.fsdecode(parts[-1])
    if is_hidden(name):
        yield Entry(path, parts, ignored=HIDDEN)
        return
    try:
        status = look()
    except OSError as error:
        yield Entry(path, parts, ignored=_REASONS.get(error.errno or 0, UNREADABLE_FILE))
        return
    if stat.S_ISDIR(status.st_mode):
        yield from _walk(path, parts, above, suffixes)
    elif not stat.S_ISREG(status.st_mode):
        yield Entry(path, parts, ignored=SPECIAL_FILE)
    elif not has_suffix(name, suffixes):
        yield Entry(path, parts, ignored=NOT_AN_IMAGE_NAME)
    else:
        yield Entry(path, parts, status.st_size, status.st_mtime_ns // 1_000_000)


def _walk(
    folder: bytes, parts: tuple[bytes, ...], above: frozenset[tuple[int, int]], suffixes: frozenset[str]
) -> Iterator[Entry]:
    try:
        here = _device_and_inode(folder)
        if here in above:
            yield Entry(folder, parts, ignored=LINK_LOOP)
            return
        with os.scandir(folder) as found:
            entries = sorted(found, key=operator.attrgetter("name"))
    except OSError as error:
        too_long = error.errno == errno.ENAMETOOLONG
        yield Entry(folder, parts, ignored=PATH_TOO_LONG if too_long else UNREADABLE_FOLDER)
        return
    below = above | {here}
    for entry in entries:
        yield from visit(entry.path, (*parts, entry.name), entry.stat, below, suffixes)
