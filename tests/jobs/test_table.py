"""`lakelens table`: versions, pins and VACUUM from the command line, without a JVM."""

from __future__ import annotations

import json
import shutil
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from result_keys import result_keys
from tracked_runs import track

from lakelens.jobs.cli import main

pytestmark = pytest.mark.unit


@pytest.fixture
def table(tmp_path: Path) -> str:
    place = str(tmp_path / "t")
    for mode, paths in (("append", ["a", "b"]), ("overwrite", ["a", "c", "d"])):
        rows = {"path": paths, "content_hash": paths, "label_name": ["cat"] * len(paths)}
        write_deltalake(place, pa.table(rows), mode=mode)
    return place


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, Any]]:
    code = main(["table", *argv])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert code or set(found) == set(result_keys()[f"table {argv[0]}", ""])
    return code, found


def test_history_counts_and_diff(table, capsys):
    code, found = run(capsys, "history", table)
    assert code == 0
    assert [(v["version"], v["rows"], v["class_counts"]) for v in found["versions"]] == [(1, 3, None), (0, 2, None)]
    assert run(capsys, "counts", f"{table}@0")[1]["classes"] == {"cat": 2}
    diff = run(capsys, "diff", table, "0")[1]
    assert (diff["added"], diff["removed"], diff["changed"]) == ({"cat": 2}, {"cat": 1}, {})


def test_counts_of_a_table_with_boxes_count_them_by_class(tmp_path, capsys):
    boxes = [[{"label_name": "cat"}, {"label_name": "dog"}], [], None, [{"label_name": "dog"}]]
    kind = pa.list_(pa.struct([("label_name", pa.string())]))
    rows = {"path": list("abcd"), "label_name": [None] * 4}
    columns = {
        **{name: pa.array(values, pa.string()) for name, values in rows.items()},
        "annotations": pa.array(boxes, kind),
    }
    write_deltalake(tmp_path / "t", pa.table(columns))
    assert main(["table", "counts", str(tmp_path / "t")]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [
        ["images", "4", "(no", "class)"],
        ["boxes", "1", "cat"],
        ["boxes", "2", "dog"],
    ]
    assert json.loads(last)["boxes"] == {"cat": 1, "dog": 2}


def test_changes_lists_rows_up_to_a_limit_and_counts_all(table, capsys):
    assert main(["table", "changes", table, "0", "--limit", "2"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert lines == ["removed  cat  b", "added    cat  c", "... and 1 more (--limit)"]
    found = json.loads(last)
    assert (found["count"], found["changes"][0]) == (3, {"path": "b", "label_name": "cat", "change": "removed"})


def test_the_times_of_the_history_name_its_versions(table, capsys):
    assert main(["table", "history", table]) == 0
    *lines, _ = capsys.readouterr().out.splitlines()
    for line in lines:
        version, date, time, *_ = line.split()
        assert time.endswith("Z")
        assert run(capsys, "counts", f"{table}@{date} {time}")[1]["version"] == int(version)


def test_a_pinned_version_survives_vacuum_and_an_unpinned_one_goes(table, capsys):
    assert run(capsys, "pin", f"{table}@0", "golden")[1]["version"] == 0
    assert run(capsys, "counts", f"{table}@golden")[1]["rows"] == 2
    (protected,) = run(capsys, "tracked", table)[1]["protected"]
    assert (protected["version"], protected["by"]) == (0, "pin golden")
    now = ["vacuum", table, "--set-retention", "0", "--allow-short-retention"]
    code, refused = run(capsys, *now)
    assert (code, refused["error"]) == (2, "VersionProtectedError")
    assert run(capsys, *now, "--keep-protected")[1]["kept"] == {"0": ["pin golden"]}
    assert run(capsys, "unpin", table, "golden")[0] == 0
    (path,) = run(capsys, *now, "--dry-run")[1]["paths"]
    assert (Path(table) / path).exists()
    assert run(capsys, *now)[1]["files"] == 1
    assert not (Path(table) / path).exists()
    assert run(capsys, "counts", f"{table}@0")[1]["error"] == "VersionFilesMissingError"
    assert len(run(capsys, "history", table, "--limit", "1")[1]["versions"]) == 1


def test_tracked_lists_what_protects_which_version_since_when(table, capsys):
    began = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
    track(table, 1, "run/7", since=began)
    track(table, 0, "run/8")
    assert main(["table", "pin", f"{table}@0", "golden"]) == 0
    capsys.readouterr()
    assert main(["table", "tracked", table]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert lines[-1] == "     1  2026-01-02 03:04:05Z  run run/7"
    found = json.loads(last)["protected"]
    assert [(one["version"], one["by"]) for one in found] == [(0, "pin golden"), (0, "run run/8"), (1, "run run/7")]
    assert all(datetime.fromisoformat(one["since"]).tzinfo for one in found)
    assert run(capsys, "untrack", table, "--older-than", "30d")[1]["versions"] == 1
    assert [one["by"] for one in run(capsys, "tracked", table)[1]["protected"]] == ["pin golden", "run run/8"]
    assert run(capsys, "untrack", table, "run/8")[1]["versions"] == 1


def test_the_quarantine_is_listed_and_filtered(table, capsys):
    assert run(capsys, "quarantine", table)[1]["count"] == 0
    rows = {"path": ["x", "y"], "reason": ["empty", "timeout"], "error": ["e", "f"], "batch_id": ["1", "2"]}
    write_deltalake(f"{table}_quarantine", pa.table(rows))
    found = run(capsys, "quarantine", table, "--reason", "empty", "--batch-id", "1")[1]
    assert (found["count"], found["reasons"], found["files"][0]["path"]) == (1, {"empty": 1}, "x")
    assert run(capsys, "quarantine", table, "--limit", "1")[1]["reasons"] == {"empty": 1, "timeout": 1}


NOT_THERE, NEVER, GONE = "NotADeltaTableError", "VersionNotFoundError", "VersionFilesMissingError"


@pytest.mark.parametrize(
    ("argv", "error", "words"),
    [
        *[([name, "{none}"], NOT_THERE, "holds no Delta table") for name in ("history", "counts", "tracked", "vacuum")],
        *[([name, "{none}"], NOT_THERE, "holds no Delta table") for name in ("quarantine", "profile")],
        *[([name, "{none}", "x"], NOT_THERE, "holds no Delta table") for name in ("diff", "pin", "unpin", "untrack")],
        (["counts", "{table}@1999-01-01T00:00Z"], NEVER, "its log covers"),
        (["counts", "{table}@1999-01-01"], "InvalidArgumentError", "has no zone, and there is no Spark session"),
        (["counts", "{table}@golden"], NEVER, "no pins"),
        (["counts", "{table}@²"], NEVER, "not a version number"),
        *[(["counts", f"{{table}}@{number}"], NEVER, "versions 0 to 1") for number in ("20261122", "9" * 20)],
        (["counts", "{none}@20261122"], NOT_THERE, "holds no Delta table"),
        (["diff", "{table}", "0", "9"], NEVER, "versions 0 to 1"),
        (["unpin", "{table}", "golden"], NEVER, "its pins: none"),
        (["untrack", "{table}", "r1"], NEVER, "its runs: none"),
        (["untrack", "{table}"], "InvalidArgumentError", "give one of them"),
        (["untrack", "{table}", "r1", "--older-than", "1d"], "InvalidArgumentError", "give one of them"),
        (["counts", "{gone}@0"], GONE, "all their files: 1"),
        (["diff", "{gone}", "0"], GONE, "all their files: 1"),
        (["pin", "{gone}@0", "golden"], GONE, "all their files: 1"),
        (["diff", "{foreign}", "0"], "NotAnImageTableError", "no column 'path'"),
        (["profile", "{foreign}"], "NotAnImageTableError", "no column 'image'"),
        (["pin", "{table}", "12"], "InvalidArgumentError", "not a pin's name"),
        (["vacuum", "{table}", "--set-retention", "5"], "InvalidArgumentError", "--allow-short-retention"),
        (["quarantine", "{table}", "--reason", "blurred"], "InvalidArgumentError", "decoder_crashed"),
        (["history", "{table}", "--limit", "0"], "InvalidArgumentError", "limit"),
    ],
)
def test_bad_input_is_a_typed_error_that_names_what_exists(table, argv, error, words, capsys, monkeypatch):
    monkeypatch.setattr("lakelens.log.opening._MODULES", ())  # a session of another test is none of the command's
    places = {"table": table, "none": f"{table}/nothing", "gone": f"{table}-gone", "foreign": f"{table}-foreign"}
    shutil.copytree(table, places["gone"])
    (Path(places["gone"]) / DeltaTable(table, version=0).get_add_actions(flatten=True)["path"][0].as_py()).unlink()
    for number in (1, 2):
        write_deltalake(places["foreign"], pa.table({"id": [number]}), mode="append")
    code, found = run(capsys, *(part.format(**places) for part in argv))
    assert (code, found["error"]) == (1 if error == GONE else 2, error)
    assert words in found["message"]
