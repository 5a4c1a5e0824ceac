"""An environment without Horovod: said before anything starts."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

pytestmark = pytest.mark.horovod

SCRIPT = """
from lakelens.errors import MissingDependencyError
from lakelens.training.experiment.strategies import TrialRunner
from lakelens.training.runner.runner import HorovodRunner

def main():
    from lakelens.training.rank.process_context import current, log_to_driver
    log_to_driver(f"rank {current().rank} of {current().size}")

HorovodRunner(np=-1).run(main)
for runner in (HorovodRunner, TrialRunner):
    try:
        runner(np=-2).run(main)
    except MissingDependencyError as error:
        print(error)
"""


def test_a_missing_horovod_is_named_before_anything_starts_and_one_rank_needs_none(tmp_path):
    site = Path(str(distribution("keras").locate_file("")))
    for entry in site.iterdir():
        if not entry.name.startswith("horovod"):
            (tmp_path / entry.name).symlink_to(entry)
    checkout = Path(__file__).resolve().parents[3]
    # -S: the environment's own packages stay out.
    run = subprocess.run(
        [sys.executable, "-S", "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(checkout), str(tmp_path)])},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    ran, error, in_training = run.stdout.splitlines()
    assert ran == "rank 0 of 1"
    assert error.startswith("Horovod is not installed; compile it")
    assert "python -m lakelens.horovod_build" in error
    assert "one rank (np=-1 or np=1) does not" in error
    assert "one rank (slots_per_trial=1) does not" in in_training
