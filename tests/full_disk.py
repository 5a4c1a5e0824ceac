"""A disk of a few megabytes that is full: scripts run in a mount namespace of their own, where they may mount one."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

_MOUNT = 'mount -t tmpfs -o size="$1" none "$2" && exec "$3" -c "$4" "$2" "$5"'
# Scripts begin with `disk`, the folder, `given`, and `fill`, which leaves no byte there and returns what takes it away.
_BEGIN = """
import json, pathlib, sys
disk, given = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
def fill():
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            assert error.errno == 28, error
    return filler.unlink
def told(call):
    try:
        call()
    except Exception as error:
        return [type(error).__name__, str(error)]
"""


@cache
def _may_mount() -> bool:
    try:
        return subprocess.run(["unshare", "-Urm", "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def run_on_small_disk(folder: Path, script: str, given: Any = None, size: str = "4m", timeout_s: float = 120) -> Any:
    """Runs a script with a small disk mounted at a folder; returns what it prints last, as JSON."""
    if not _may_mount():
        pytest.skip("this user may not mount a disk in a namespace of its own (unshare -Urm)")
    folder.mkdir(exist_ok=True)
    command = ["unshare", "-Urm", "sh", "-c", _MOUNT, "sh", size, str(folder), sys.executable, _BEGIN + script]
    found = subprocess.run(
        [*command, json.dumps(given)], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert found.returncode == 0, found.stderr[-3000:]
    return json.loads(found.stdout.splitlines()[-1])
