"""The entries of a Delta table's log: which there are, what they say, and which versions they can rebuild."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...locations import absolute, has_scheme
from ...stores.clients import reaching
from ...stores.options import delta_options

_COMMIT = re.compile(r"^(\d{20})\.json$")
_COMPACTED = re.compile(r"^(\d{20})\.(\d{20})\.compacted\.json$")
_CHECKPOINT = re.compile(r"^(\d{20})\.checkpoint\..*(parquet|json)$")


class LogFiles:
    """The entries of a table's log: on a disk by their paths, in an object store through delta-rs.

    Args:
        place: Where delta-rs finds the table; there may be none.
        storage_options: Access to an object store.

    Attributes:
        commits: Numbers of the commits that have its own entry, sorted.
        versions: Numbers of all versions that an entry is named after, sorted.

    Raises:
        StoreError: If the object store cannot be reached or refuses.
        OSError: If a disk does not list the log; that there is none is not an error.
    """

    def __init__(self, place: str, storage_options: Mapping[str, str] | None) -> None:
        self._place = absolute(place)
        self._folder = Path(self._place) / "_delta_log"
        self._system: Any = None
        if has_scheme(self._place):
            import pyarrow.fs
            from deltalake.fs import DeltaStorageHandler

            with reaching(self._place):
                handler = DeltaStorageHandler(self._place, delta_options(storage_options))
            self._system = pyarrow.fs.PyFileSystem(handler)
        names = self._names()
        self.commits = sorted(int(found[1]) for name in names if (found := _COMMIT.match(name)))
        self._committed = set(self.commits)
        for name in names:
            if found := _COMPACTED.match(name):
                self._committed.update(range(int(found[1]), int(found[2]) + 1))
        self._checkpoints = sorted({int(found[1]) for name in names if (found := _CHECKPOINT.match(name))})
        self.versions = sorted({*self.commits, *self._checkpoints})

    def read(self, version: int) -> list[dict[str, Any]]:
        """Returns the actions of a commit."""
        name = f"{version:020d}.json"
        if self._system is None:
            text = (self._folder / name).read_text(encoding="utf-8")
        else:
            with self._system.open_input_stream(f"_delta_log/{name}") as stream:
                text = stream.read().decode("utf-8")
        # Not splitlines(): Spark writes U+2028 and its like into its JSON as they are.
        return [json.loads(line) for line in text.split("\n") if line.strip()]

    def can_rebuild(self, version: int) -> bool:
        """Whether the log holds the entries that a version is made of, whether or not they can be read."""
        start = max((number for number in self._checkpoints if number <= version), default=-1)
        return all(number in self._committed for number in range(start + 1, version + 1))

    def _names(self) -> list[str]:
        if self._system is None:
            try:
                return [path.name for path in self._folder.iterdir()]
            except (FileNotFoundError, NotADirectoryError):
                return []
        import pyarrow.fs

        with reaching(self._place):
            found = self._system.get_file_info(pyarrow.fs.FileSelector("_delta_log", allow_not_found=True))
        return [entry.base_name for entry in found if entry.is_file]
