"""Rules of the table that is scored: its version stays, while it is read and after that."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tracked_runs import tracked

from lakelens.inference.scoring.source import ScoredTable
from lakelens.ledger.protection import untrack
from lakelens.log.snapshot import open_snapshot
from lakelens.table import Table

pytestmark = pytest.mark.unit

DIGEST = "d" * 64
SCORED = "score-dddddddddddd-0"


@pytest.fixture
def table(tmp_path) -> str:
    write_deltalake(str(tmp_path / "table"), pa.table({"path": ["a"]}))
    return str(tmp_path / "table")


def protected(table):
    return ScoredTable(None, open_snapshot(Table.of(table))).protected(DIGEST)


def test_a_scoring_that_fails_leaves_the_version_to_another_of_the_same_model_that_runs(table):
    failing, lasting = protected(table), protected(table)
    failing.__enter__()
    lasting.__enter__()
    assert not failing.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert list(tracked(table)) == [0]
    lasting.__exit__(None, None, None)
    assert tracked(table) == {0: [SCORED]}


def test_a_failed_scoring_protects_nothing_unless_one_before_it_has_succeeded(table):
    for left in ({}, {0: [SCORED]}):
        with pytest.raises(KeyboardInterrupt), protected(table):
            raise KeyboardInterrupt
        assert tracked(table) == left
        with protected(table):
            assert list(tracked(table)) == [0]
        assert tracked(table) == {0: [SCORED]}


def test_scorings_that_end_at_once_leave_one_name(table):
    def run(number):
        try:
            with protected(table):
                if number % 2:
                    raise ValueError(number)
        except ValueError as error:
            assert error.args == (number,)  # noqa: PT017  of many threads each raises its own

    for _ in range(5):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(run, range(16)))
        assert tracked(table) == {0: [SCORED]}
        untrack(Table.of(table), SCORED)
