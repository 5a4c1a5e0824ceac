"""What every benchmark shares: its repeats, its arithmetic and its report."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import harness

pytestmark = pytest.mark.unit


def test_repeats_are_interleaved_and_compared_pair_by_pair(capsys: pytest.CaptureFixture[str]) -> None:
    load = {0: 1.0, 1: 10.0, 2: 1.0}  # of the machine, in each repeat: it slows both
    calls: list[str] = []

    def measured(name: str, seconds: float, repeat: int) -> dict[str, float]:
        calls.append(name)
        return {"s": seconds * load[repeat]}

    measures = {
        "ours": lambda repeat: measured("ours", 2.0, repeat),
        "theirs": lambda repeat: measured("theirs", 1.0, repeat),
    }
    report = harness.Report("test", {"repeats": 3})
    report.measure(3, measures, {"s": ("", "s")})
    assert calls == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
    report.compare("ours", "theirs", at_most=1.9)
    report.compare("theirs", "ours", at_least=0.5)
    report.show(as_json=True)
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["series"]["ours"] == {"unit": "s", "median": 2.0, "min": 2.0, "max": 20.0, "values": [2.0, 20.0, 2.0]}
    assert last["ratios"] == {"ours / theirs": 2.0, "theirs / ours": 0.5}
    assert [aim["met"] for aim in last["aims"]] == [False, True]
    with pytest.raises(ValueError, match="as many of each"):
        harness.paired_ratio([1.0], [1.0, 2.0])
