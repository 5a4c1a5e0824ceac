"""Runs or resumes a search in a process of its own, which can be killed after an event."""

from __future__ import annotations

import json
import os
import signal
import sys

from lakelens.search import resume
from lakelens.search.journal import Journal
from lakelens.search.running.run import search


def kill_after(kind: str) -> None:
    """Lets the process kill itself once an event of a kind is on disk, and nothing else has been done."""
    append = Journal.append

    def append_and_die(self, events) -> None:
        append(self, events)
        if any(event["event"] == kind for event in events):
            os.kill(os.getpid(), signal.SIGKILL)

    Journal.append = append_and_die


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    if given.get("kill_after"):
        kill_after(given["kill_after"])
    if given.get("resume"):
        result = resume(given["resume"], tracking_uri=given["keys"]["tracking"]["uri"])
    else:
        result = search(given["keys"])
    trials = result.trials()[["trial", "state", "best"]].to_dict("records")
    print(
        json.dumps({"run_id": result.run_id, "best_trial": result.best_trial, "value": result.value, "trials": trials})
    )
