"""Rules of a model in a Python worker: it is loaded only if it fits into the worker's memory."""

from __future__ import annotations

import resource

import psutil
import pytest

from lakelens.errors import ScoringFailedError
from lakelens.inference.model.shipping import _check_memory
from lakelens.training.checkpoints.checkpoint import Checkpoint

pytestmark = pytest.mark.unit


def test_a_model_that_outgrows_a_worker_is_an_error_with_both_numbers(tmp_path):
    checkpoint = Checkpoint(tmp_path, "", {})
    with checkpoint.model_path.open("wb") as file:
        file.truncate(1 << 30)
    _, hard = limits = resource.getrlimit(resource.RLIMIT_AS)
    # As Spark does with spark.executor.pyspark.memory.
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + (512 << 20), hard))
    try:
        with pytest.raises(ScoringFailedError, match=r"file has 1024 MiB, .* may take 5\d\d MiB more.*pyspark\.memory"):
            _check_memory(checkpoint)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    _check_memory(checkpoint)
