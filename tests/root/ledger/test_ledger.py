"""The ledger's pure rules: numbers and names of classes, rows by version, pins and uses."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from lakelens.ledger import ledger as ledgers
from lakelens.ledger.ledger import LabelClass, Ledger, Pin, Use, Vacuum
from lakelens.liveness import Process

pytestmark = pytest.mark.unit

NOW = datetime(2026, 3, 1, tzinfo=timezone.utc)
CATS = Ledger().reserved(["cat", "dog"])


def test_numbers_only_grow_and_stay_with_their_names():
    assert CATS.labels == {"cat": 0, "dog": 1}
    grown = CATS.reserved(["ant", "dog", "ant", "bee"])
    assert grown.labels == {"cat": 0, "dog": 1, "ant": 2, "bee": 3}
    assert CATS.reserved(["ant"], largest=7).labels["ant"] == 8
    assert CATS.reserved([]) == CATS


def test_a_renamed_class_keeps_its_number_and_every_name_that_it_had():
    lion = CATS.renamed("cat", "lion").renamed("lion", "tiger")
    assert (lion.labels, lion.aliases) == ({"tiger": 0, "dog": 1}, {"cat": "tiger", "lion": "tiger"})
    assert lion.reserved(["cat", "lion"]) == lion
    back = lion.renamed("tiger", "cat")
    assert (back.labels, set(back.aliases)) == ({"cat": 0, "dog": 1}, {"lion", "tiger"})


def test_a_rename_that_failed_leaves_no_name_behind_and_one_that_was_killed_can_be_repeated():
    begun = CATS.begun("cat", "lion", 3)
    assert (begun.labels, begun.aliases) == (CATS.labels, {})
    assert begun.given_up("cat", "lion") == CATS
    assert begun.given_up("cat", "tiger") == begun
    assert begun.begun("cat", "lion", 4).renamed("cat", "lion") == CATS.renamed("cat", "lion")


@pytest.mark.parametrize(
    ("version", "counts", "labels", "is_begun"),
    [
        (4, {"lion": 2, "dog": 1}, {"lion": 0, "dog": 1}, False),  # killed after its commit
        (4, {"cat": 2, "dog": 1}, {"cat": 0, "dog": 1}, False),  # another writer was faster
        (3, {"cat": 2, "dog": 1}, {"cat": 0, "dog": 1}, True),  # the writer before it was slower to record its version
    ],
)
def test_a_rename_that_has_begun_ends_with_the_next_version(version, counts, labels, is_begun):
    begun = CATS.begun("cat", "lion", 3)
    ledger = begun.recorded(version, counts)
    assert (ledger.labels, ledger.classes[0].renaming is not None) == (labels, is_begun)
    settled, wrong = begun.settled({(name, CATS.labels.get(name, 0)): rows for name, rows in counts.items()})
    assert (settled.labels, wrong) == (labels, ())


def test_a_name_that_an_ingest_reserved_during_a_rename_goes_with_the_commit_of_the_rename():
    reserved = CATS.begun("cat", "lion", 3).reserved(["lion"])
    assert reserved.labels == {"cat": 0, "dog": 1, "lion": 2}
    assert reserved.renamed("cat", "lion") == CATS.renamed("cat", "lion")
    # The rename was killed after its commit; nothing, or the rows of that ingest, have come since.
    for rows in ({}, {("lion", 2): 4}):
        settled, wrong = reserved.settled({("lion", 0): 3, ("dog", 1): 2, **rows})
        assert settled == CATS.renamed("cat", "lion")
        assert [str(one) for one in wrong] == [
            f"{count} rows and boxes of 'lion' with the number 2, while its number is 0" for count in rows.values()
        ]


def test_classes_of_other_writers_keep_their_numbers_where_they_are_free():
    rows = {("cat", 0): 5, ("ant", 1): 3, ("bee", 4): 2, ("cat", 4): 1, ("bee", 9): 7}
    settled, wrong = CATS.settled(rows)
    assert settled.labels == {"cat": 0, "dog": 1, "bee": 9}
    assert [str(one) for one in wrong] == [
        "3 rows and boxes of 'ant' with the number 1, which is that of 'dog'",
        "2 rows and boxes of 'bee' with the number 4, while its number is 9",
        "1 row or box of 'cat' with the number 4, while its number is 0",
    ]
    assert Ledger().settled({("cat", 3): 1})[0].classes == (LabelClass(3, "cat"),)


@pytest.mark.parametrize(
    ("rows", "name"), [({("cat", 0): 4}, "cat"), ({("lion", 0): 1, ("cat", 0): 4}, "lion"), ({("dog", 1): 4}, "lion")]
)
def test_a_class_whose_rows_all_have_a_former_name_has_that_name_again(rows, name):
    settled, wrong = CATS.renamed("cat", "lion").settled(rows)
    assert (settled.labels, wrong) == ({name: 0, "dog": 1}, ())
    counts = {row[0]: count for row, count in rows.items()}
    assert CATS.renamed("cat", "lion").recorded(5, counts).labels == {name: 0, "dog": 1}


def test_a_version_keeps_the_classes_that_it_had():
    ledger = CATS.recorded(0, {"cat": 4, "dog": 3})
    ledger = ledger.reserved(["bee"]).recorded(2, {"cat": 4, "dog": 3, "bee": 1, "(no class)": 2})
    renamed = ledger.renamed("dog", "hound").recorded(3, {"cat": 4, "hound": 3, "bee": 1})
    assert renamed.labels_at(0) == {"cat": 0, "dog": 1}
    # Of a version that nobody recorded the next one has every class.
    assert renamed.labels_at(1) == renamed.labels_at(2) == {"cat": 0, "dog": 1, "bee": 2}
    assert renamed.labels_at(3) == renamed.labels_at(9) == {"cat": 0, "hound": 1, "bee": 2}
    assert renamed.counts_at(2) == {"cat": 4, "dog": 3, "bee": 1, "(no class)": 2}
    assert renamed.counts_at(1) is None
    # A slower writer records an earlier version later.
    assert renamed.recorded(1, {"cat": 4, "dog": 3}).labels == renamed.labels


def test_the_oldest_versions_are_dropped_but_those_that_are_protected(monkeypatch):
    monkeypatch.setattr(ledgers, "MOST_COUNTED", 30)
    ledger = CATS.with_pin(Pin("first", 0, NOW)).with_use(Use("run", 3, NOW, NOW))
    for version in range(100):
        ledger = ledger.recorded(version, {"cat": version})
    assert list(ledger.versions) == [0, 3, *range(90, 100)]


def test_pins_and_uses_protect_versions_until_they_are_removed():
    ledger = Ledger().with_pin(Pin("gold", 1, NOW)).with_pin(Pin("a", 1, NOW)).with_pin(Pin("gold", 2, NOW))
    ledger = ledger.with_use(Use("r", 2, NOW, NOW)).with_use(Use("r", 2, NOW, NOW)).with_use(Use("s", 0, NOW, NOW))
    assert ledger.protected() == {0: ("run s",), 1: ("pin a",), 2: ("pin gold", "run r")}
    assert (ledger.version_of("gold"), ledger.version_of("none")) == (2, None)
    freed = ledger.without_pin("gold").without_uses(lambda use: use.run_id == "r")
    assert freed.protected() == {0: ("run s",), 1: ("pin a",)}


def test_a_vacuum_blocks_the_versions_that_it_does_not_keep():
    ledger = Ledger(vacuum=Vacuum("v", (2, 5), 6, 0, Process.this()))
    assert [version for version in range(8) if not ledger.blocks(version)] == [2, 5, 6, 7]
    assert not Ledger().blocks(0)
