"""The benchmarks' arithmetic, without a JVM."""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import (
    checkpointing,
    emulated,
    fault_page,
    faults,
    feed_planning,
    first_batch,
    harness,
    launch,
    memory,
    photographs,
    picture,
    quality,
    scaling,
    summary,
)
from benchmarks.contender import Contender, ContenderError
from benchmarks.emulated import highest_busy_rate, take
from benchmarks.leftovers import TAG, end_tagged, look
from benchmarks.memory_group import MemoryGroup, MemoryGroupError
from lakelens.errors import VersionFilesMissingError

pytestmark = pytest.mark.unit


class Counter:
    """A contender for these tests."""

    def __init__(self, start: int) -> None:
        print("not a reply")
        self.value = start

    def add(self, number: int) -> dict[str, int]:
        print("nor this")
        self.value += number
        return {"value": self.value}

    def fail(self) -> None:
        raise ValueError("asked to fail")

    def die(self) -> None:
        os._exit(7)

    def start_child(self) -> dict[str, int]:
        return {"pid": subprocess.Popen(["sleep", "600"]).pid}


def counter(folder: Path) -> Contender:
    return Contender("test_harness:Counter", folder / "log", start=3)


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parent))
    return tmp_path


def test_ratios_pair_what_was_measured_in_the_same_repeat() -> None:
    # Load doubles both in the second repeat; the ratio of medians would be 2 as well, the ratio of means would not.
    assert harness.paired_ratio([2.0, 20.0, 4.0], [1.0, 10.0, 1.0]) == 2.0
    with pytest.raises(ValueError, match="as many of each"):
        harness.paired_ratio([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="one at least"):
        harness.paired_ratio([], [])


def test_every_contender_is_first_as_often_as_the_others() -> None:
    names = ["a", "b", "c"]
    orders = [harness.rotated(names, repeat) for repeat in range(6)]
    assert [order[0] for order in orders] == ["a", "b", "c", "a", "b", "c"]
    assert all(sorted(order) == names for order in orders)


def test_repeats_are_interleaved() -> None:
    calls: list[str] = []

    def measure(name: str) -> dict[str, float]:
        calls.append(name)
        return {"x": len(calls)}

    found = harness.interleave(2, {"a": lambda _: measure("a"), "b": lambda _: measure("b")}, lambda _: None)
    assert calls == ["a", "b", "b", "a"]
    assert found == {"a": {"x": [1.0, 4.0]}, "b": {"x": [2.0, 3.0]}}


def test_aims_hold_their_bounds() -> None:
    assert harness.Aim("x", 0.9, at_least=0.9).met
    assert not harness.Aim("x", 0.89, at_least=0.9).met
    assert harness.Aim("x", 1.0, at_most=1.05).met
    assert not harness.Aim("x", 1.06, at_most=1.05).met


def test_the_last_line_is_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    report = harness.Report("test", {"repeats": 3})
    report.add("ours", "rows/s", [3.0, 1.0, 2.0])
    report.add("theirs", "rows/s", [1.0, 1.0, 1.0])
    report.compare("ours", "theirs", at_least=3)
    report.show(as_json=True)
    lines = capsys.readouterr().out.splitlines()
    found = json.loads(lines[-1])
    assert found["series"]["ours"]["median"] == 2.0
    assert found["series"]["ours"]["values"] == [3.0, 1.0, 2.0]
    assert found["ratios"] == {"ours / theirs": 2.0}
    assert found["aims"] == [{"name": "ours / theirs", "value": 2.0, "at_least": 3, "met": False}]
    assert found["machine"]["cores"] == os.cpu_count()


@pytest.mark.parametrize(
    ("main", "argv", "words"),
    [
        (quality.main, ["--repeats", "3"], "--repeats"),
        (faults.main, ["--repeats", "3"], "--repeats"),
        (faults.main, ["--launchers", "--page", "x"], "give both"),
        (scaling.main, ["--folder", "x"], "--folder"),
        (scaling.main, ["--steps", "0"], "0 is not at least 1"),
        (scaling.main, ["--rounds", "0"], "0 is not at least 1"),
        (scaling.main, ["--sizes-mb", "1", "-1"], "-1 is not a number above 0"),
        (scaling.main, ["--step-ms", "nan"], "nan is not a number above 0"),
    ],
)
def test_a_flag_that_would_change_nothing_is_refused_before_anything_is_measured(
    main: Callable[[list[str]], int],
    argv: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.modules[main.__module__], "run", lambda _: pytest.fail("it was measured"))
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err


def test_the_floor_of_a_launch_is_the_import_without_the_interpreters_end() -> None:
    ends_late = "import atexit, time; atexit.register(time.sleep, 20)"
    assert launch.import_floor(sys.executable, ends_late)["s"] < 20
    with pytest.raises(ValueError, match="ended with 1"):
        launch.import_floor(sys.executable, "import nothing_of_that_name")


def test_first_batches_are_compared_from_the_smallest_to_the_largest_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first(report: harness.Report, _: int, __: object, scale: int, ___: Path) -> None:
        report.add(f"lakelens at {scale}x", "s", [float(scale)])

    monkeypatch.setattr(first_batch, "_one_scale", first)
    monkeypatch.setattr(first_batch, "_encoded", lambda *_: [b""])
    monkeypatch.setattr(first_batch.photos, "photographs", lambda *_: None)
    monkeypatch.setattr(first_batch, "write_table", lambda table, *_: table.mkdir())
    asked = argparse.Namespace(rows=1, scales=[100, 1, 1], contenders=[], repeats=1, folder=tmp_path)
    report = first_batch.run(asked)
    assert report.settings["scales"] == [1, 100]
    assert [(aim.name, aim.value, aim.met) for aim in report.aims] == [
        ("lakelens at 100x / lakelens at 1x", 100, False)
    ]


def test_a_temporary_folder_goes_and_a_kept_one_stays(tmp_path: Path) -> None:
    with harness.scratch(None) as (kept, temporary):
        assert kept == temporary
    assert not temporary.exists()
    with harness.scratch(tmp_path / "kept") as (kept, temporary):
        assert temporary.parent == kept
    assert kept.exists()
    assert not temporary.exists()


def test_a_contender_answers_and_its_prints_go_to_the_log(target: Path) -> None:
    with counter(target) as running:
        assert running.call("add", number=4)["value"] == 7
        assert running.call("add", number=1)["seconds"] >= 0
    assert "nor this" in (target / "log").read_text()


def test_a_contender_that_raises_or_dies_says_so(target: Path) -> None:
    with counter(target) as running:
        with pytest.raises(ContenderError, match="ValueError: asked to fail"):
            running.call("fail")
        assert running.call("add", number=1)["value"] == 4
        with pytest.raises(ContenderError, match="ended with 7"):
            running.call("die")


def test_a_contender_leaves_no_child_behind(target: Path) -> None:
    with counter(target) as running:
        child = psutil.Process(running.call("start_child")["pid"])
        assert child in memory.tree(running.pid)
    assert memory.gone_within([child], 60) == []


def test_photographs_are_the_same_for_the_same_seed_and_differ_among_themselves(tmp_path: Path) -> None:
    made = photographs.photographs(tmp_path / "a", 12, classes=4, seed=5)
    again = photographs.photographs(tmp_path / "b", 12, classes=4, seed=5)
    contents = [path.read_bytes() for path in photographs.files(made)]
    assert contents == [path.read_bytes() for path in photographs.files(again)]
    assert len(set(contents)) == 12
    assert made.bytes == sum(map(len, contents))
    assert sorted(path.name for path in made.folder.iterdir() if path.is_dir()) == [
        "001.china-0",
        "002.flower-0",
        "003.china-1",
        "004.flower-1",
    ]
    part = photographs.subset(made, 5, tmp_path / "part")
    assert part.bytes == sum(path.stat().st_size for path in (tmp_path / "part").rglob("*.jpg"))
    assert photographs.photographs(tmp_path / "a", 12, classes=4, seed=5) == made


def test_an_emulated_accelerator_is_busy_while_it_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    now = 0.0

    def passes(seconds: float) -> None:
        nonlocal now
        now += seconds

    def batches() -> Iterator[np.ndarray]:
        for _ in range(5):
            passes(0.002)
            yield np.zeros((4, 2, 2, 3), np.uint8)

    monkeypatch.setattr(emulated, "time", SimpleNamespace(perf_counter=lambda: now, sleep=passes))
    found = take(batches(), 4, rate=400)
    # Sixteen images after the first batch at 400/s, and 2 ms of waiting for each of their batches.
    assert (found["rows"], found["busy"]) == (20, pytest.approx(40 / 48))
    assert take(batches(), 4)["busy"] == 0


def test_bisection_finds_the_highest_rate_that_stays_busy() -> None:
    rate = highest_busy_rate(lambda asked: min(1.0, 700 / asked), 1600, 0.9, rounds=12)
    assert rate == pytest.approx(700 / 0.9, rel=0.01)


def test_the_log_of_empty_files_is_one_that_delta_reads(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    feed_planning.write_log(tmp_path / "table", 25)
    feed_planning.write_files(tmp_path / "table", 25)
    table = DeltaTable(str(tmp_path / "table"))
    adds = table.get_add_actions(flatten=True)
    assert adds.num_rows == 25
    assert (tmp_path / "table" / "_delta_log" / "_last_checkpoint").exists()
    assert all(Path(tmp_path / "table" / path).is_file() for path in adds.column("path").to_pylist())
    found = feed_planning.Feed().plan(str(tmp_path / "table"))
    assert found["rows"] == 25 * 64
    assert found["sent"] < 5000
    (tmp_path / "table" / adds.column("path").to_pylist()[3]).unlink()
    with pytest.raises(VersionFilesMissingError, match=r"1 of its 25 data file\(s\)"):
        feed_planning.Feed().plan(str(tmp_path / "table"))


def test_tagged_processes_are_found_when_their_parent_has_gone(tmp_path: Path) -> None:
    tag = f"a-test-{secrets.token_hex(4)}"
    before = look(tag, 0, tmp_path)
    subprocess.run(["sh", "-c", "sleep 600 & "], env={**os.environ, TAG: tag}, check=True)
    (tmp_path / "left").touch()

    def left() -> dict[str, list[str]]:
        return look(tag, 0, tmp_path).beyond(before)

    try:
        deadline = time.monotonic() + 60
        while [line.split()[1] for line in left()["processes"]] != ["sleep"]:
            assert time.monotonic() < deadline
            time.sleep(0.02)  # it is a shell until it has replaced itself
        assert [file for file in left()["files"] if file.startswith(str(tmp_path))] == [str(tmp_path / "left")]
    finally:
        assert end_tagged(tag) == 1


def test_the_table_of_faults_says_what_was_seen(tmp_path: Path) -> None:
    results = tmp_path / "faults.json"
    names = ["rank", "host", "cause"]
    ours = faults.Result("lakelens", "exception", "error", 0.42, "RankFailedError", "ValueError: ...", names)
    theirs = faults.Result("TorchDistributor", "exception", "hangs", 90, left={"processes": ["1 x"], "ports": []})
    faults.keep(results, [ours], 90)
    found = faults.keep(results, [theirs], 90)
    page = tmp_path / "faults.md"
    page.write_text(f"before\n{fault_page.BEGIN}\nold\n{fault_page.END}\nafter\n")
    fault_page.write_page(page, found, ("exception",), ("lakelens", "horovod.spark.run", "TorchDistributor"))
    text = page.read_text()
    assert (
        "| exception | `RankFailedError` after 0.4 s, names rank, host and cause; leaves nothing | not run | **hangs**"
        in text
    )
    assert "leaves 1 process |" in text
    assert "old" not in text
    assert text.startswith("before")
    assert text.endswith("after\n")


def test_a_message_names_the_cause_in_words_that_one_would_look_for() -> None:
    assert faults.named("kill -9 rank 1", "rank 1 of 2 on h was ended by SIGKILL", ["h"]) == ["rank", "host", "cause"]
    assert faults.named("kill -9 rank 0", "rank 1 was ended by SIGKILL", ["h"]) == ["cause"]
    assert faults.named("kill -9 rank 1", "Connection closed by peer", ["h.local"]) == []
    assert faults.named("kill -9 rank 1", "the jvm says SIGKILL", ["vm"]) == ["cause"]
    assert faults.named("exception", "ValueError: the fault that was asked for", []) == ["cause"]
    assert faults.named("more ranks than slots", "4 ranks need 4 slots, rank 1 on h", ["h"]) == ["cause"]


def test_shared_memory_of_other_processes_is_not_a_jobs_leftover(tmp_path: Path) -> None:
    from multiprocessing.shared_memory import SharedMemory

    mapped, unmapped = (SharedMemory(create=True, size=4096) for _ in range(2))
    try:
        unmapped.close()
        files = look("a-test", os.getpid(), tmp_path).files
        assert f"/dev/shm/{unmapped.name}" in files
        assert f"/dev/shm/{mapped.name}" not in files
    finally:
        mapped.close()
        mapped.unlink()
        unmapped.unlink()


def test_results_of_faults_hold_no_place_of_this_machine() -> None:
    places = {"/a": "A", "/a/b": "<folder>", "h": "<host>"}
    assert faults.without_places("/a/b/c, the path on h", places) == "<folder>/c, the path on <host>"


def test_a_process_that_passes_its_groups_memory_is_killed_and_counted() -> None:
    try:
        group = MemoryGroup(64 << 20)
    except MemoryGroupError as error:
        pytest.skip(str(error))
    with group:
        joining = f"open({str(group.processes)!r}, 'w').write(str(__import__('os').getpid())); b'x' * (256 << 20)"
        assert subprocess.run([sys.executable, "-c", joining], check=False).returncode == -9
        assert group.kills() == 1


def test_the_summary_shows_aims_and_where_each_file_was_measured(tmp_path: Path) -> None:
    report = harness.Report("etl", {"repeats": 2})
    report.add("lakelens", "images/s", [8.0, 6.0])
    report.add("pool", "images/s", [10.0, 10.0])
    report.compare("lakelens", "pool", at_least=0.9)
    (tmp_path / "etl.json").write_text(json.dumps(report.as_json()))
    page = tmp_path / "page.md"
    page.write_text(f"{summary.BEGIN}\n{summary.END}\n")
    assert summary.main(["--results", str(tmp_path), "--page", str(page)]) == 0
    text = page.read_text()
    assert "| etl | lakelens / pool | 0.7 | ≥ 0.9 | **missed** |" in text
    assert re.search(r"\| `etl.json` \| .* cores, Python .* \| repeats 2 \|", text)
    page.write_text("no marks")
    with pytest.raises(ValueError, match="lacks"):
        summary.main(["--results", str(tmp_path), "--page", str(page)])


def test_the_bars_of_the_picture_are_the_ratios_of_the_kept_results(tmp_path: Path) -> None:
    results = summary.read_results(summary.CHECKOUT / "benchmarks" / "results")
    drawn = [(comparison, picture.bars(comparison, results)) for comparison in picture.COMPARISONS]
    recorded = 0
    for comparison, (ours, *_) in drawn:
        ratio = results[comparison.results]["ratios"].get(f"{comparison.lakelens} / {comparison.limit}")
        if ratio is not None:
            assert ours.share == pytest.approx(ratio, rel=1e-3), comparison.title
            recorded += 1
    assert recorded >= len(drawn) - 1
    assert [bar.name for bar in drawn[0][1]] == ["lakelens", "row UDF"]
    assert picture.main(["--out", str(tmp_path / "bars.png")]) == 0
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")


def test_useful_time_loses_a_restart_and_half_a_period_to_each_kill() -> None:
    assert checkpointing.expected_useful(restart_s=5.0, period_s=10.0, every_s=100.0) == pytest.approx(0.9)
    assert checkpointing.expected_useful(restart_s=50.0, period_s=10.0, every_s=10.0) == 0.0


def test_restarts_are_found_between_kills_and_first_steps() -> None:
    events = [("first_step", 1), ("killed", 9), ("first_step", 12), ("_write", 14), ("killed", 20), ("first_step", 24)]
    noted = [{"event": event, "time": float(time)} for event, time in [*events, ("ended", 31)]]
    assert checkpointing.restarts(noted) == [3.0, 4.0]
    assert checkpointing.worked(noted) == 30.0


# Not measured: what a formula gives for a training that is killed faster than it can start is 0.
MODELLED = ("useful time, expected",)


WITH_PETASTORMS_READER = pytest.mark.skipif(
    int(metadata.version("pyarrow").partition(".")[0]) > 14,
    reason="Petastorm's own reader needs pyarrow 14, here an environment of 3.8 GB: make test-long STACK=spark-3.5",
)


def measured_by(command: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", *f"benchmarks.{command} --json".split()],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_killed_scoring_repeats_a_commit_and_a_plain_job_all_rows() -> None:
    found = measured_by("killed_scoring --photographs 48 --row-ms 30 --contenders score predict_batch_udf")
    twice = {name: found["series"][f"{name} rows computed twice"]["max"] for name in ("score", "predict_batch_udf")}
    assert twice["score"] <= 48 / 12
    assert twice["predict_batch_udf"] >= 48 / 2
    assert all(aim["met"] for aim in found["aims"])


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "command",
    [
        "checkpointing --photographs 64 --side 32 --epochs 4 --kill-every-s 0.2 --kills 1 --repeats 1",
        pytest.param("petastorm --photographs 70 --epochs 1 --repeats 1 --no-torch", marks=WITH_PETASTORMS_READER),
        "training --photographs 64 --sides 32 --ranks 1 2 --epochs 2 --repeats 1 --contenders lakelens memory tfrecord",
    ],
)
def test_the_benchmarks_of_training_run_at_their_smallest(command: str) -> None:
    found = measured_by(command)
    measured = {name: series["values"] for name, series in found["series"].items() if name not in MODELLED}
    assert all(value > 0 for values in measured.values() for value in values)
    assert found["aims"]
    assert not [note for note in found["notes"] if note.startswith("no kill")]
