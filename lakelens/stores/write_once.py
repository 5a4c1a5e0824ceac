"""New files and folders on a disk: complete when a reader sees them; a name that exists is not written again.

What is new is made under a temporary name, forced to disk and then renamed: mounted object stores (/dbfs, /Volumes)
allow neither appends nor links, without which two writers of one name at the same moment are not told apart.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PARTIAL = re.compile(r"^\..+\.[0-9a-f]{16}\.partial$")


@contextmanager
def partial_path(folder: Path, name: str) -> Iterator[Path]:
    """Gives a temporary path, and removes what the body has left there; a writer that dies leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{name}.{secrets.token_hex(8)}.partial"
    try:
        yield partial
    finally:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)


def publish(partial: Path, final: Path) -> bool:
    """Gives a complete file or folder its name, in the same folder, and forces both to disk."""
    sync(partial)
    if final.exists():  # as late as can be: mounted stores have no links, which would refuse a second name
        return False
    partial.rename(final)
    sync(final.parent)
    return True


def is_partial(path: Path) -> bool:
    """Returns whether a path is a temporary one, which a writer uses or a dead writer has left."""
    return _PARTIAL.match(path.name) is not None


def sync(path: Path) -> None:
    """Forces a file or a folder's entries to disk, so that after a crash a name never points to missing data."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
