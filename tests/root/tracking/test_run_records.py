"""Records of a run, in a file beside its checkpoints."""

from __future__ import annotations

import pytest
from full_disk import run_on_small_disk

pytestmark = pytest.mark.system

SCRIPT = """
from lakelens.tracking.run_writer import RecordFile, RunRecord, read_records, write_run_file
records = RecordFile(disk)
records.add(RunRecord(step=1, metrics={"loss": 2.0}))
empty = fill()
errors = [told(lambda: records.add(RunRecord(step=2, params={"text": "x" * 9000}))),
          told(lambda: write_run_file(disk / "evaluation.npz", bytes(9000)))]
empty()
files = sorted(file.name for file in disk.iterdir())
print(json.dumps([errors, [record.step for record in read_records(disk)], files]))
"""


def test_a_full_disk_is_an_error_that_names_the_file_and_keeps_the_records_before(tmp_path):
    errors, steps, files = run_on_small_disk(tmp_path / "disk", SCRIPT)
    for (kind, message), name in zip(errors, ("records.jsonl", "evaluation.npz"), strict=True):
        assert kind == "CheckpointError"
        assert f"{name} cannot be written" in message
        assert "No space left" in message
        assert "Free space" in message
    assert (steps, files) == ([1], ["records.jsonl"])
