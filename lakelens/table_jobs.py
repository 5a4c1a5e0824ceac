"""What a table keeps of the jobs that have written into it: arguments and result, by key.

Ingests and scorings are safe to repeat: what is committed is not done again. So a table keeps nothing of a job
that has not finished, and two calls at the same time share the work.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import TableError
from .job_keys import Job, check_arguments, recorded_arguments
from .ledger.store import FOLDER
from .stores.data_files import exists, local_form, read_bytes, remove_file, write_bytes
from .table import Table


@dataclass(frozen=True)
class TableJob:
    """A job that writes into a table; its record is a small file in the table's folder, which VACUUM leaves alone."""

    table: Table  # The table by its path
    job: Job  # The job
    arguments: Mapping[str, Any]  # Its arguments

    @property
    def location(self) -> str:
        """Path or URI of the record."""
        return f"{self.table.path}/{FOLDER}/jobs/{self.job.digest}.json"

    def result(self) -> dict[str, Any] | None:
        """Returns the result that a call of the key has recorded; None if none has finished, or if it starts over."""
        if not exists(self.location, self.table.storage_options):
            return None
        if self.job.from_start:  # a call that is killed must leave no older result
            remove_file(self.location, self.table.storage_options)
            return None
        try:
            found = json.loads(read_bytes(self.location, self.table.storage_options))
            recorded, result = found["arguments"], dict(found["result"])
        except (ValueError, KeyError, TypeError) as error:
            raise TableError(
                f"{self.location}, the record of job {self.job.key!r}, is damaged ({error}); remove it, and the job "
                "runs again"
            ) from error
        check_arguments(self.job, recorded, self.arguments)
        return result

    def finish(self, result: Mapping[str, Any]) -> None:
        """Records the result; of calls at the same time that of the first one stays."""
        if exists(self.location, self.table.storage_options):
            return
        path = local_form(self.location)
        if path is not None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        arguments = recorded_arguments(self.arguments, limit=1 << 20)
        record = {"key": self.job.key, "arguments": arguments, "result": dict(result)}
        write_bytes(self.location, f"{json.dumps(record, default=str)}\n".encode(), self.table.storage_options)
