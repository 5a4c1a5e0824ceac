"""Rules of retries after a conflict."""

from __future__ import annotations

import time

import pytest

from lakelens.errors import InvalidArgumentError, TableConflictError
from lakelens.retries import Retries

pytestmark = pytest.mark.unit

AT_ONCE = Retries(attempts=3, first_wait_s=0.0, longest_wait_s=0.0)


def test_a_conflict_is_tried_again_until_the_last_attempt_and_another_error_ends_the_work() -> None:
    errors: list[Exception] = [TableConflictError("one"), TableConflictError("two")]

    def work() -> str:
        if errors:
            raise errors.pop(0)
        return "done"

    assert AT_ONCE.run(work, "t: busy.") == "done"
    errors += [TableConflictError(f"call {number}") for number in (1, 2, 3)]
    with pytest.raises(TableConflictError, match=r"t: busy\. Last of 3 attempts: call 3"):
        AT_ONCE.run(work, "t: busy.")
    errors += [InvalidArgumentError("wrong")]
    with pytest.raises(InvalidArgumentError, match="wrong"):
        AT_ONCE.run(work, "t: busy.")


def test_a_first_attempt_does_not_wait_and_no_wait_is_longer_than_the_longest() -> None:
    started = time.monotonic()
    retries = Retries(attempts=2, first_wait_s=1_000_000.0, longest_wait_s=0.01)
    retries.wait(0)
    retries.wait(1_000)
    assert time.monotonic() - started < 1
