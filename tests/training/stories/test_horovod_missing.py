"""An environment without Horovod, or with one for another TensorFlow: said before anything starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import distribution, version
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
try:
    HorovodRunner(np=-2).run(main)
except MissingDependencyError as error:
    print(error)
try:
    TrialRunner(np=-2).run(main)
except MissingDependencyError as error:
    print(error)
"""


def environment_with(folder: Path, horovod: str | None) -> dict[str, str]:
    """Links all packages but Horovod; `horovod` is the TensorFlow for which a second one claims to be built."""
    site = Path(str(distribution("horovod").locate_file("")))
    for entry in site.iterdir():
        if not entry.name.startswith("horovod"):
            (folder / entry.name).symlink_to(entry)
    if horovod is not None:
        (info,) = site.glob("horovod-*.dist-info")
        (folder / info.name).symlink_to(info)
        (folder / "horovod").mkdir()
        (folder / "horovod" / "metadata.json").write_text(json.dumps({"tensorflow": horovod}))
    checkout = Path(__file__).resolve().parents[3]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(checkout), str(folder)])}


@pytest.mark.parametrize(
    ("horovod", "words"),
    [
        (None, "Horovod is not installed; compile it"),
        ("2.1.0", "Horovod was compiled for TensorFlow 2.1.0, and {tensorflow} is installed; compile it again"),
        ("", "Horovod was installed without TensorFlow support; compile it again"),
    ],
)
def test_a_horovod_that_does_not_fit_is_named_before_anything_starts_and_one_rank_needs_none(tmp_path, horovod, words):
    # -S: the environment's own packages stay out.
    run = subprocess.run(
        [sys.executable, "-S", "-c", SCRIPT],
        env=environment_with(tmp_path, horovod),
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    ran, error, in_training = run.stdout.splitlines()
    assert ran == "rank 0 of 1"
    assert error.startswith(words.format(tensorflow=version("tensorflow")))
    assert "python -m lakelens.horovod_build" in error
    assert "one rank (np=-1 or np=1) does not" in error
    assert "one rank (slots_per_trial=1) does not" in in_training
