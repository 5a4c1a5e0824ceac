"""The same faults on lakelens, horovod.spark.run and TorchDistributor: how each ends, when, and what stays behind.

Two ranks on `local[2]` sum a number twenty times a second. When both have, one fault is made to happen. Measured are
the seconds from the fault until `run()` returns, what it returns with, and which processes, listening ports and
temporary files of the job are there ten seconds later that were not there before it. A `run()` that has not return
after `--bound-s` counts as hanging. Each launcher has its defaults. Results are added to `--results`; the site's
page about faults shows those of `benchmarks/results/faults.json`.

Out of memory is the kernel's own kill where a memory control group can be made (as root, or in a delegated group): the
driver and all that it starts are in one with a limit, and rank 1 takes memory until it is passed. Elsewhere the rank
sends itself the signal that the kernel would have sent, and the table's cell notes it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from . import harness
from .harness import positive, rounded, scratch, tell
from .launchers import LAUNCHERS
from .leftovers import TAG, Seen, end_tagged, look, tagged
from .memory_group import MemoryGroup, MemoryGroupError
from .peers import make_peer

RANKS = 2
_START_S = 300.0
_SETTLE_S = 10.0
# Driver, JVM and two ranks of TensorFlow have 2.5 GB before one of them takes more.
_MEMORY_LIMIT_BYTES = 4 << 30
_CHECKOUT = Path(__file__).resolve().parent.parent

FAULTS = (
    "none",
    "kill -9 rank 0",
    "kill -9 rank 1",
    "SIGSTOP rank 1",
    "exception",
    "early return",
    "out of memory",
    "driver killed",
    "more ranks than slots",
)


@dataclass
class Result:
    """How one launcher met one fault."""

    launcher: str  # Its name
    fault: str  # Its name
    ended: str  # `returned`, `error` or `hangs`; `ranks gone` or `ranks live on` when the driver was killed
    seconds: float  # From the fault to the end; the bound when it hangs
    error: str = ""  # The error's class
    message: str = ""  # The error's message, its first 2,000 characters
    names: list[str] = field(default_factory=list)  # Which of `rank`, `host` and `cause` the message names
    left: dict[str, list[str]] = field(default_factory=dict)  # Processes, ports and files that stayed
    by_itself: bool = False  # Whether the rank sent itself the signal that the kernel was meant to send


_CAUSES: dict[str, tuple[str, ...]] = {
    "kill -9 rank 0": ("SIGKILL", "signal 9", "-9", "137", "killed"),
    "kill -9 rank 1": ("SIGKILL", "signal 9", "-9", "137", "killed"),
    "out of memory": ("SIGKILL", "signal 9", "-9", "137", "killed", "memory"),
    "SIGSTOP rank 1": ("SIGSTOP", "stopped", "stall"),
    "exception": ("the fault that was asked for",),
    "early return": ("returned", "early"),
    "more ranks than slots": ("slot",),
}
_RANK_AT_FAULT = {"kill -9 rank 0": 0, "more ranks than slots": None}


def named(fault: str, message: str, hosts: Sequence[str]) -> list[str]:
    """Which of rank, host and cause an error's message names, in words that a person would look for."""
    rank = _RANK_AT_FAULT.get(fault, 1)
    found = []
    if rank is not None and re.search(rf"\b(?:rank|process name|task)[\s:=]*{rank}\b", message, re.IGNORECASE):
        found.append("rank")
    if rank is not None and any(re.search(_word(host), message) for host in hosts):
        found.append("host")
    if any(word.lower() in message.lower() for word in _CAUSES.get(fault, ())):
        found.append("cause")
    return found


def without_places(text: str, places: Mapping[str, str]) -> str:
    """Writes other words for what only this machine has: its folders and its name."""
    for place in sorted(places, key=len, reverse=True):
        pattern = re.escape(place) if "/" in place else _word(place)
        text = re.sub(pattern, places[place], text)
    return text


def _word(name: str) -> str:
    return rf"(?<![\w-]){re.escape(name)}(?![\w-])"


class Trial:
    """One driver that meets one fault."""

    def __init__(self, launcher: str, fault: str, python: str | Path, place: Path, bound_s: float) -> None:
        self.launcher, self.fault, self.bound_s = launcher, fault, bound_s
        self.place = place
        self.temporary = place / "tmp"
        self.temporary.mkdir(parents=True)
        self.tag = uuid.uuid4().hex
        ranks = 2 * RANKS if fault == "more ranks than slots" else RANKS
        seconds = 5.0 if fault == "none" else bound_s + 30
        variables = {**os.environ, TAG: self.tag, "TMPDIR": str(self.temporary), "PYTHONPATH": str(_CHECKOUT)}
        variables |= {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
        command = [str(python), "-m", "benchmarks.fault_driver", launcher, fault, str(place), str(ranks), str(seconds)]
        self.group = _memory_group() if fault == "out of memory" else None
        if self.group is not None:
            command = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.group.processes), *command]
        self.hosts = [name for name in {socket.gethostname(), socket.getfqdn()} if name]
        self.places = {f"{_CHECKOUT}/": "", str(place): "<folder>", sys.prefix: "<environment>"}
        self.places |= {str(Path(python).parent.parent): "<environment>"}
        with (place / "log").open("wb") as log:
            self.driver = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=variables, cwd=place
            )

    def meet(self) -> Result:
        """Waits for the ranks, makes the fault happen, waits for the end and looks for what stays."""
        self._wait(lambda: (self.place / "session.json").exists(), _START_S, "no Spark session")
        self.hosts += json.loads((self.place / "session.json").read_text(encoding="utf-8"))["hosts"]
        self.places |= dict.fromkeys(self.hosts, "<host>")
        before = look(self.tag, self.driver.pid, self.temporary)
        launched_at = time.time()
        if self.fault not in ("more ranks than slots", "none"):
            self._wait(lambda: len(self._ranks()) == RANKS, _START_S, "the ranks have not joined")
        if self.fault == "driver killed":
            return self._without_driver(before)
        fault_at = self._make_fault() or launched_at
        found = self._outcome(fault_at)
        if found is None:
            return Result(self.launcher, self.fault, "hangs", self.bound_s, left=self._left(before))
        ended = "returned" if "returned" in found else "error"
        message = found.get("message", "")
        result = Result(self.launcher, self.fault, ended, rounded(found["at"] - fault_at, 3))
        result.error, result.message = found.get("error", ""), without_places(message, self.places)[:2000]
        result.names = named(self.fault, message, self.hosts)
        time.sleep(_SETTLE_S)
        result.left = self._left(before)
        return result

    def close(self) -> None:
        """Ends the driver and everything that carries its tag."""
        (self.place / "close").touch()
        try:
            self.driver.wait(20)
        except subprocess.TimeoutExpired:
            self.driver.kill()
            self.driver.wait()
        end_tagged(self.tag)
        if self.group is not None:
            self.group.remove()

    def _make_fault(self) -> float | None:
        if self.fault in ("none", "more ranks than slots"):
            return None
        if self.fault in ("exception", "early return", "out of memory"):
            going = self.place / "going"
            going.write_text(str(self.group.limit_bytes if self.group is not None else 0), encoding="utf-8")
            going.rename(self.place / "go")
            self._wait(lambda: (self.place / "fault-at").exists(), 30, "rank 1 did not see the file go")
            if self.group is not None:
                return self._kernels_kill(self.group)
            time.sleep(0.2)
            return float((self.place / "fault-at").read_text(encoding="utf-8"))
        sent, rank = (signal.SIGSTOP, 1) if self.fault.startswith("SIGSTOP") else (signal.SIGKILL, int(self.fault[-1]))
        os.kill(self._ranks()[rank], sent)
        return time.time()

    def _kernels_kill(self, group: MemoryGroup) -> float:
        if not _holds(lambda: group.kills() > 0, _START_S):
            raise TrialError(f"{self.launcher}: the kernel has killed no process in the control group")
        return time.time()

    def _ranks(self) -> dict[int, int]:
        files = self.place.glob("rank-*.pid")
        return {int(file.stem.removeprefix("rank-")): int(file.read_text(encoding="utf-8")) for file in files}

    def _outcome(self, fault_at: float) -> dict[str, Any] | None:
        path = self.place / "outcome.json"
        # Without a fault, the start of the ranks is in these seconds too.
        until = fault_at + self.bound_s + (_START_S if self.fault == "none" else 0)
        if not _holds(lambda: path.exists() or self.driver.poll() is not None, until - time.time()):
            return None
        if not path.exists():
            return {"error": "driver died", "message": f"exit code {self.driver.returncode}", "at": time.time()}
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found

    def _without_driver(self, before: Seen) -> Result:
        ranks = list(self._ranks().values())
        self.driver.kill()
        self.driver.wait()
        killed_at = time.time()
        alive = not _holds(lambda: not any(_alive(pid) for pid in ranks), self.bound_s)
        seconds = rounded(time.time() - killed_at, 3)
        time.sleep(0 if alive else _SETTLE_S)
        left = self._left(before)
        # Without its driver, nothing of Spark has a reason to be there either.
        left["processes"] = [f"{process.pid} {process.name()}" for process in tagged(self.tag)]
        return Result(self.launcher, self.fault, "ranks live on" if alive else "ranks gone", seconds, left=left)

    def _left(self, before: Seen) -> dict[str, list[str]]:
        left = look(self.tag, self.driver.pid, self.temporary).beyond(before)
        return {kind: [without_places(text, self.places) for text in texts] for kind, texts in left.items()}

    def _wait(self, ready: Callable[[], bool], seconds: float, problem: str) -> None:
        outcome = self.place / "outcome.json"

        def over() -> bool:
            return self.driver.poll() is not None or outcome.exists()

        _holds(lambda: ready() or over(), seconds)
        if not ready():
            ended = outcome.read_text(encoding="utf-8") if outcome.exists() else f"exit {self.driver.poll()}"
            log = (self.place / "log").read_text(encoding="utf-8", errors="replace")[-3000:]
            raise TrialError(f"{self.launcher}, {self.fault}: {problem}; {ended}\n{log}")


def _holds(condition: Callable[[], bool], seconds: float) -> bool:
    """Waits until a condition holds, for some seconds at most."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class TrialError(Exception):
    """Raised when a launcher does not get as far as the fault."""


def _memory_group() -> MemoryGroup | None:
    try:
        return MemoryGroup(_MEMORY_LIMIT_BYTES)
    except MemoryGroupError as error:
        tell(f"out of memory will be a SIGKILL that the rank sends itself: {error}")
        return None


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def run(arguments: Any) -> list[Result]:
    """Runs every launcher against every fault."""
    results = []
    with scratch(arguments.folder) as (kept, temporary):
        for fault in arguments.faults:
            for launcher in arguments.launchers:
                python = make_peer("torch", kept) if launcher == "TorchDistributor" else sys.executable
                place = temporary / f"{launcher}-{fault}".replace(" ", "-")
                trial = Trial(launcher, fault, python, place, arguments.bound_s)
                try:
                    result = trial.meet()
                    result.by_itself = fault == "out of memory" and trial.group is None
                except TrialError as error:
                    result = Result(
                        launcher, fault, "did not start", 0.0, message=without_places(str(error), trial.places)
                    )
                finally:
                    trial.close()
                results.append(result)
                left = {key: len(value) for key, value in result.left.items() if value}
                tell(f"{launcher}, {fault}: {result.ended} {result.error} after {result.seconds:g} s; left {left}")
                if arguments.results is not None:
                    keep(arguments.results, result, arguments.bound_s)
    return results


def keep(path: Path, result: Result, bound_s: float) -> None:
    """Adds a result to a file, over that of the same launcher and fault."""
    known = json.loads(path.read_text(encoding="utf-8"))["results"] if path.exists() else []
    merged = {(one["launcher"], one["fault"]): one for one in known}
    merged[result.launcher, result.fault] = asdict(result)
    order = {(launcher, fault): i for i, (fault, launcher) in enumerate((f, n) for f in FAULTS for n in LAUNCHERS)}
    value = {
        "benchmark": "faults",
        "bound_s": bound_s,
        "machine": harness.machine(),
        "results": sorted(merged.values(), key=lambda one: order.get((one["launcher"], one["fault"]), len(order))),
    }
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    flags = harness.parser(__doc__, repeats=None)
    flags.add_argument(
        "--launchers", nargs="*", choices=list(LAUNCHERS), default=list(LAUNCHERS), help="who takes part"
    )
    flags.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS), help="which faults")
    flags.add_argument("--bound-s", type=positive, default=90, help="seconds after which run() counts as hanging")
    flags.add_argument("--results", type=Path, help="JSON file to which results are added")
    given = flags.parse_args()
    found = [asdict(one) for one in run(given)]
    if given.json:
        print(json.dumps({"benchmark": "faults", "results": found, "machine": harness.machine()}))
