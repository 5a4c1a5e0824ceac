"""The lists of what Databricks runtimes have; `make test-stacks` installs them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lakelens.horovod_build import TENSORFLOW_NAMES

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("stack", ["15.4", "16.4", "17.3", "18"])
def test_each_runtime_names_its_python_and_pins_what_a_story_needs(stack: str, checkout: Path) -> None:
    text = (checkout / "constraints" / "runtimes" / f"{stack}.txt").read_text(encoding="utf-8")
    assert re.search(r"^# python 3\.1[0-3]$", text, re.MULTILINE)
    pinned = set(re.findall(r"^([\w.-]+)==", text, re.MULTILINE))
    assert {"pyspark", "delta-spark", "numpy", "pandas", "pyarrow", "protobuf"} <= pinned
    assert pinned & set(TENSORFLOW_NAMES)


def test_every_package_that_pip_replaces_has_its_reason(checkout: Path) -> None:
    for path in (checkout / "constraints" / "runtimes").glob("*.txt"):
        marked = re.findall(r"^[\w.-]+==.*# replaced(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert marked, path.name
        assert all(re.match(r": \w", reason) for reason in marked), path.name
