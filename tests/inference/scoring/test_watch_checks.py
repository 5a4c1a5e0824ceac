"""What a watch refuses before model, table or session are looked for."""

from __future__ import annotations

import pytest

from lakelens.errors import InvalidArgumentError, UsageError
from lakelens.inference.scoring.score import score

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("table", "options", "words"),
    [
        ("photos", {"watch_s": 0}, r"watch_s=0: give seconds above 0 \(--watch\)"),
        ("photos", {"watch_s": float("nan")}, "watch_s=nan: give seconds"),
        ("photos", {"watch_s": "60"}, "watch_s='60': give seconds"),
        ("photos@3", {"watch_s": 60}, "photos@3 names a version, and a watch .*--watch.* scores each one that comes"),
        ("photos", {"watch_s": 60, "version": "first"}, "photos@first names a version"),
        ("photos", {"on_pass": print}, "on_pass is called while a table is watched: give watch_s too"),
    ],
)
def test_a_watch_without_seconds_or_with_a_version_is_refused(table, options, words):
    with pytest.raises(InvalidArgumentError, match=words):
        score(None, "runs:/none", table, "predictions", **options)


def test_the_name_of_earlier_versions_is_answered_with_the_new_one():
    with pytest.raises(UsageError, match=r"lakelens\.score_stream is now lakelens\.score\(\.\.\., watch_s=SECONDS\)"):
        from lakelens import score_stream  # noqa: F401
