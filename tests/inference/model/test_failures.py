"""Rules of whose fault it is that a row is not scored; pure logic."""

from __future__ import annotations

import pytest

from lakelens.errors import CheckpointError, ScoringFailedError, VersionFilesMissingError
from lakelens.inference.model.failures import first_line, is_transient, typed_failure

pytestmark = pytest.mark.unit

_STAGE = "org.apache.spark.SparkException: Job aborted due to stage failure: Task 3 in stage 7.0 failed 4 times, "
_TRACE = "Traceback (most recent call last):\n  File 'worker.py', line 1\n"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("model_raised: ResourceExhaustedError: OOM when allocating tensor", True),
        ("out_of_memory: decoding took more memory than one image may", True),
        ("corrupt: MemoryError: Unable to allocate 1 GiB", True),
        ("corrupt: OSError: [Errno 24] Too many open files", True),
        ("corrupt: OSError: broken data stream when reading image file", False),
        ("not_finite: the model's output for this image has NaN or infinite values", False),
    ],
)
def test_only_what_may_have_been_the_machines_fault_is_tried_again(error, expected):
    assert is_transient(error) is expected


@pytest.mark.parametrize(
    ("report", "kind", "words"),
    [
        (_TRACE + "lakelens.errors.CheckpointError: the archive is damaged\n", CheckpointError, "archive is damaged"),
        (_TRACE + "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 3 GiB\n", ScoringFailedError, "3 GiB"),
        (_STAGE + "most recent failure: ExecutorLostFailure (executor 2 exited)", ScoringFailedError, "executor 2"),
        (_STAGE + "java.io.FileNotFoundException: part-0.parquet", VersionFilesMissingError, "VACUUM"),
        ("[PATH_NOT_FOUND] Path does not exist: file:/t/part-0.parquet.", VersionFilesMissingError, "VACUUM"),
    ],
)
def test_a_task_that_fails_is_an_error_of_ours(report, kind, words):
    error = typed_failure(report, "/tables/photos@3")
    assert type(error) is kind
    assert words in str(error)


def test_an_error_is_written_as_its_cause_and_not_where_tensorflow_came_by():
    around = "Graph execution error:\n\nDetected at node a/PyFunc defined at (most recent call last):\n"
    around += '  File "<frozen runpy>", line 198, in _run_module_as_main\n\n'
    inner = "RuntimeError: the device is gone\nTraceback (most recent call last):\n\n [[{{node a/PyFunc}}]]"
    assert first_line(OSError(around + inner)) == "OSError: RuntimeError: the device is gone"
    assert first_line(OSError(f"{around}OOM when allocating\n[[node a]]")) == "OSError: OOM when allocating"
    assert first_line(MemoryError()) == "MemoryError: without a message"


def test_an_error_of_the_driver_stays_as_it_is():
    assert typed_failure("[TABLE_OR_VIEW_NOT_FOUND] The table or view `a` cannot be found.", "/t@0") is None
