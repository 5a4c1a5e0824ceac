"""Rules of planning, path by path: what the source, the table, its quarantine and the stamps say of a file."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakelens.etl.annotations.record import BOXES_LOST, CLASS_UNKNOWN
from lakelens.etl.changes.plan import CHANGED, GONE, IN_QUARANTINE, KNOWN, NEW, RESTAMPED, STATUS, STORED_CLASS
from lakelens.etl.changes.rules import (
    BAD,
    COUNTS,
    RESEEN,
    STAMP,
    STORED,
    Facts,
    PlanRules,
    decide,
    decide_after_reading,
    without_unlisted,
)
from lakelens.etl.quarantine import DELETED, RETRIED_REASONS

pytestmark = pytest.mark.unit

ROOT = "file:///data/images"
PATH = f"{ROOT}/cat/1.jpg"
LISTED = (*STAMP, "label_name", "ignored", "annotation_hash", "content_hash")
ONE, OTHER = (10, 5), (10, 6)


def facts_of(names, row):
    kinds = pa.struct([(name, pa.int64() if name in STAMP else pa.string()) for name in names])
    return Facts.of_structs(pa.array([None if row is None else dict(zip(names, row, strict=True))], kinds))


def decided(listed=None, stored=None, bad=None, reseen=None, path=PATH, root=ROOT, **rules):
    rows = zip((LISTED, STORED, BAD, RESEEN), (listed, stored, bad, reseen), strict=True)
    return decide(pa.array([path]), *(facts_of(names, row) for names, row in rows), root, PlanRules(**rules))


def listed(stamp=ONE, label="cat", ignored=None, annotation=None, content=None):
    return (*stamp, label, ignored, annotation, content)


def stored(stamp=ONE, annotation=None, label="cat"):
    return (*stamp, annotation, "h1", label)


def bad(reason="corrupt", stamp=ONE, annotation=None, content=None):
    return (*stamp, annotation, reason, content)


@pytest.mark.parametrize(
    ("sides", "status", "in_quarantine"),
    [
        ({"listed": listed()}, NEW, False),
        ({"listed": listed(ignored="hidden")}, None, False),
        ({"listed": listed(), "stored": stored()}, KNOWN, False),
        ({"listed": listed(OTHER), "stored": stored()}, CHANGED, False),
        ({"listed": listed((11, 5)), "stored": stored()}, CHANGED, False),
        ({"listed": listed(OTHER), "stored": stored(), "reseen": (*OTHER, "h1")}, KNOWN, False),
        ({"listed": listed(OTHER), "stored": stored(), "reseen": (*OTHER, "h0")}, CHANGED, False),
        ({"listed": listed(annotation="said"), "stored": stored()}, CHANGED, False),
        ({"listed": listed(annotation="said"), "stored": stored(annotation="said")}, KNOWN, False),
        ({"listed": listed(content="h1"), "stored": stored()}, KNOWN, False),
        ({"listed": listed(content="h2"), "stored": stored()}, CHANGED, False),
        ({"listed": listed(), "bad": bad()}, KNOWN, False),
        ({"listed": listed(OTHER), "bad": bad()}, CHANGED, True),
        ({"listed": listed(annotation="said"), "bad": bad()}, CHANGED, True),
        ({"listed": listed(), "bad": bad(RETRIED_REASONS[0])}, CHANGED, True),
        ({"listed": listed(), "bad": bad(None)}, CHANGED, True),
        ({"listed": listed(), "bad": bad(), "retry_quarantine": True}, CHANGED, True),
        ({"listed": listed(), "bad": bad(CLASS_UNKNOWN), "classes": frozenset({"dog"})}, KNOWN, False),
        ({"listed": listed(), "bad": bad(CLASS_UNKNOWN), "classes": frozenset({"cat"})}, CHANGED, True),
        ({"listed": listed(), "bad": bad(CLASS_UNKNOWN)}, CHANGED, True),
        ({"listed": listed(), "bad": bad(BOXES_LOST)}, KNOWN, False),
        ({"listed": listed(), "bad": bad(BOXES_LOST), "drop_bad_boxes": True}, CHANGED, True),
        ({"listed": listed(), "stored": stored(), "bad": bad()}, KNOWN, True),  # a kill between the two commits
        ({"listed": listed(), "bad": bad(DELETED, content="h1")}, KNOWN, False),
        ({"listed": listed(), "bad": bad(DELETED, content="h1"), "retry_quarantine": True}, KNOWN, False),
        ({"listed": listed(OTHER), "bad": bad(DELETED, content="h1"), "reseen": (*OTHER, "h1")}, KNOWN, False),
        ({"listed": listed(OTHER), "bad": bad(DELETED, content="h1"), "reseen": (*OTHER, "h2")}, CHANGED, True),
        ({"listed": listed(), "stored": stored(), "bad": bad(DELETED, content="h1")}, KNOWN, True),  # restored
        ({"stored": stored()}, GONE, False),
        ({"bad": bad()}, GONE, True),
    ],
)
def test_what_is_to_be_done_about_a_file(sides, status, in_quarantine):
    (row,) = decided(**sides).to_pylist()
    assert (row[STATUS], row[IN_QUARANTINE], row[COUNTS], row[RESTAMPED]) == (status, in_quarantine, True, False)
    assert row[STORED_CLASS] == ("cat" if "stored" in sides else None)


@pytest.mark.parametrize(
    "sides",
    [
        {"stored": stored(), "path": f"{ROOT}-2/cat/1.jpg"},
        {"stored": stored(), "root": None},
        {"bad": bad(DELETED, content="h1")},
        {"reseen": (*ONE, "h1")},
    ],
    ids=["of another folder", "of a source without a folder", "deleted", "only seen"],
)
def test_what_is_not_listed_is_gone_only_if_it_was_known_below_the_folder(sides):
    assert decided(**sides)[COUNTS].to_pylist() == [False]


def test_what_lies_below_a_path_that_could_not_be_looked_into_is_not_gone():
    names = ("locked/1.jpg", "locked/deep/er/2.jpg", "locked-2/3.jpg", "cat/4.jpg")
    rows = pa.table({"path": [f"{ROOT}/{name}" for name in names], STATUS: [GONE] * 3 + [NEW]})
    kept = without_unlisted(rows, {f"{ROOT}/locked", f"{ROOT}/cat"})
    assert kept["path"].to_pylist() == [f"{ROOT}/locked-2/3.jpg", f"{ROOT}/cat/4.jpg"]
    assert without_unlisted(rows, set()) is rows


@pytest.mark.parametrize(
    ("sides", "content", "outcome"),
    [
        ({"listed": listed(OTHER), "stored": stored()}, "h1", (KNOWN, False, True)),
        ({"listed": listed(OTHER), "stored": stored()}, "h2", (CHANGED, False, False)),
        ({"listed": listed(OTHER), "stored": stored()}, None, (CHANGED, False, False)),
        ({"listed": listed(), "stored": stored()}, "h2", (CHANGED, False, False)),
        ({"listed": listed(OTHER, annotation="said"), "stored": stored()}, "h1", (CHANGED, False, False)),
        ({"listed": listed(OTHER), "bad": bad(DELETED, content="h1")}, "h1", (KNOWN, False, True)),
        ({"listed": listed(OTHER), "bad": bad(DELETED, content="h1")}, "h2", (CHANGED, True, False)),
        ({"listed": listed(), "bad": bad(DELETED, content="h1")}, "h2", (CHANGED, True, False)),
    ],
)
def test_a_file_that_was_read_is_judged_by_its_content(sides, content, outcome):
    rows = decide_after_reading(decided(**sides), pa.chunked_array([pa.array([content], pa.string())]))
    assert tuple(rows.select([STATUS, IN_QUARANTINE, RESTAMPED]).to_pylist()[0].values()) == outcome
    assert pc.all(rows[COUNTS]).as_py()
