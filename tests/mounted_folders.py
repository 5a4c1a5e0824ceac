"""Local folders below the URIs of other file systems, through Hadoop's viewfs, which needs no server."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from lakelens.spark.port import settings_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextlib.contextmanager
def mount(spark: SparkSession, scheme: str, authority: str, folder: Path) -> Iterator[str]:
    """Mounts a local folder where a store's URIs lead; gives its URI there."""
    viewfs = "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme"
    made = {
        f"fs.{scheme}.impl": viewfs,
        f"fs.viewfs.mounttable.{authority or 'default'}.link./mount": f"file://{folder}",
        "fs.viewfs.overload.scheme.target.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
    }
    with settings_of(spark, made):
        yield f"{scheme}://{authority}/mount" if authority else f"{scheme}:/mount"


def account() -> str:
    """A name that no other test has: Hadoop keeps file systems by name for as long as the JVM lives."""
    return f"lake{uuid.uuid4().hex}"
