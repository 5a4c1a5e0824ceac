"""`lakelens table`: versions, pins and VACUUM from the command line, without a JVM."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

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
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


def test_history_counts_and_diff(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = run(capsys, "history", table)
    assert code == 0
    assert [(v["version"], v["rows"], v["class_counts"]) for v in found["versions"]] == [
        (1, 3, {"cat": 3}),
        (0, 2, {"cat": 2}),
    ]
    assert run(capsys, "counts", table, "--version", "0")[1]["classes"] == {"cat": 2}
    diff = run(capsys, "diff", table, "0")[1]
    assert (diff["added"], diff["removed"], diff["changed"]) == ({"cat": 2}, {"cat": 1}, {})


def test_a_pinned_version_survives_vacuum_and_an_unpinned_one_goes(
    table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "pin", table, "golden", "--version", "0")[1]["version"] == 0
    assert run(capsys, "counts", table, "--version", "golden")[1]["rows"] == 2
    assert run(capsys, "pins", table)[1]["protected"] == {"0": ["pin golden"]}
    now = ["vacuum", table, "--set-retention", "0", "--allow-short-retention"]
    code, refused = run(capsys, *now)
    assert (code, refused["error"]) == (2, "VersionProtectedError")
    assert run(capsys, *now, "--keep-protected")[1]["kept"] == {"0": ["pin golden"]}
    assert run(capsys, "unpin", table, "golden")[0] == 0
    assert run(capsys, *now, "--dry-run")[1]["files"] == 1
    assert run(capsys, *now)[1]["files"] == 1
    assert run(capsys, "history", table)[1]["versions"][1]["rows"] is None


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["counts", "{table}", "--version", "9"], "VersionNotFoundError"),
        (["history", "{table}/nothing"], "NotADeltaTableError"),
        (["unpin", "{table}", "golden"], "VersionNotFoundError"),
        (["vacuum", "{table}", "--set-retention", "5"], "InvalidArgumentError"),
    ],
)
def test_bad_input_is_a_typed_error_and_exit_code_2(
    table: str, argv: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = run(capsys, *(part.format(table=table) for part in argv))
    assert (code, found["error"]) == (2, error)


def test_no_spark_is_imported(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    import subprocess

    code = (
        f"import sys; from lakelens.jobs.cli import main; code = main(['table', 'history', {table!r}]); "
        "print(code, 'pyspark' in sys.modules, 'tensorflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 False False"
