"""One driver process that launches ranks which will meet a fault; writes what `run()` came to as JSON.

python -m benchmarks.fault_driver LAUNCHER FAULT FOLDER RANKS SECONDS
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from . import ranks
from .launchers import LAUNCHERS


def main() -> int:
    """Launches once; the session stays open until the folder holds `close`, so that leftovers can be looked for."""
    name, fault, folder, count, seconds = sys.argv[1:]
    place = Path(folder)
    launcher = LAUNCHERS[name](place)
    hosts = [launcher.spark.sparkContext.getConf().get("spark.driver.host")]
    _write(place / "session.json", {"hosts": hosts})
    try:
        value = launcher.run(
            ranks.meet_fault, int(count), library=name, fault=fault, folder=folder, seconds=float(seconds)
        )
        outcome: dict[str, Any] = {"returned": value}
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the result
        outcome = {"error": type(error).__name__, "module": type(error).__module__, "message": str(error)}
    _write(place / "outcome.json", {**outcome, "at": time.time()})
    while not (place / "close").exists():
        time.sleep(0.1)
    launcher.close()
    return 0


def _write(path: Path, value: dict[str, Any]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value), encoding="utf-8")
    partial.rename(path)


if __name__ == "__main__":
    sys.exit(main())
