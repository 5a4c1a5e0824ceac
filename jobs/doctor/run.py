"""`lakelens doctor`: tries every part that the main job needs and shows how to fix each that does not work."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import lakelens
from lakelens.jobs.command import EXIT_DONE, EXIT_FAILED
from lakelens.jobs.doctor.checks import CHECKS, Finding
from lakelens.logged import last_lines
from lakelens.tracking.runs import resolve_tracking_uri

DESCRIPTION = (
    "Try every part: Python, packages, Java, TensorFlow, Horovod, Petastorm, Delta through Spark, the MLflow store"
)
# Added to a failure whose own message does not name the way out.
WAY_OUT = {
    "tensorflow": "pip install 'lakelens[training]'",
    "horovod": "python -m lakelens.horovod_build",
    "petastorm": "pip install 'lakelens[petastorm]'",
    "delta": "pip install 'lakelens[spark]'; Delta's JARs come from Maven at the first start, or lie in Spark's jars/",
    "mlflow": "pip install 'lakelens[training]', or set MLFLOW_TRACKING_URI to a store that answers",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the doctor."""
    parser.add_argument("--part", action="append", choices=tuple(CHECKS), help="only this part (repeatable)")
    parser.add_argument("--timeout-s", type=float, default=120.0, help="seconds after which a part counts as hanging")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Tries the parts side by side and prints one line for each in a fixed order."""
    parts = [part for part in CHECKS if not args.part or part in args.part]
    findings: list[Finding] = []
    running: list[subprocess.Popen[str]] = []
    with tempfile.TemporaryDirectory(prefix="lakelens-doctor-") as folder, ThreadPoolExecutor(len(parts)) as pool:
        try:
            for finding in pool.map(lambda part: examine(part, Path(folder), args.timeout_s, running), parts):
                findings.append(finding)
                print(finding.line(), flush=True)
        except KeyboardInterrupt:
            # The checks run in separate sessions and do not get the signal; the pool would wait for them.
            for process in running:
                _end(process)
            raise
    ok = all(finding.ok for finding in findings)
    return {
        "ok": ok,
        "lakelens": lakelens.__version__,
        "parts": [asdict(finding) for finding in findings],
        "exit_code": EXIT_DONE if ok else EXIT_FAILED,
    }


def examine(part: str, folder: Path, timeout_s: float, running: list[subprocess.Popen[str]]) -> Finding:
    """Tries one part in a separate process, which may crash or hang, and ends everything that it started."""
    started = time.monotonic()
    log = folder / f"{part}.log"
    # A clone that is not installed is found where this process found it, after everything else.
    root = str(Path(lakelens.__file__).resolve().parent.parent)
    code = f"import sys; sys.path.append({root!r}); from lakelens.jobs.doctor.checks import main; main({part!r})"
    # What an ended JVM leaves behind goes with the doctor's own folder.
    scratch = {"TMPDIR": str(folder), "SPARK_LOCAL_DIRS": str(folder)}
    environment = os.environ | scratch | {"TF_CPP_MIN_LOG_LEVEL": "3", "MLFLOW_DISABLE_TELEMETRY": "true"}
    if environment.get("MLFLOW_TRACKING_URI"):  # relative to where the user is; the check runs elsewhere
        environment["MLFLOW_TRACKING_URI"] = resolve_tracking_uri(environment["MLFLOW_TRACKING_URI"])
    with log.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        running.append(process)
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            output = ""
        finally:
            hung = process.poll() is None
            _end(process)
    if process.stdout is not None:
        process.stdout.close()
    found = _found_in(output)
    if hung:
        found = Finding(None, ok=False, detail=f"no answer within {timeout_s:.0f} s (busy? see --timeout-s)")
    elif found is None:
        found = Finding(None, ok=False, detail=_how_it_ended(process.returncode, log))
    detail = found.detail
    if not found.ok and WAY_OUT.get(part, detail) not in detail:
        detail = f"{detail} -> {WAY_OUT[part]}"
    return replace(found, part=part, detail=detail, seconds=round(time.monotonic() - started, 1))


def _found_in(output: str) -> Finding | None:
    """Reads what a check printed last; None when it ended before."""
    lines = output.strip().splitlines()
    try:
        return Finding(**json.loads(lines[-1]))
    except (IndexError, ValueError, TypeError):
        return None


def _how_it_ended(returncode: int, log: Path) -> str:
    ended = f"signal {signal.Signals(-returncode).name}" if returncode < 0 else f"exit code {returncode}"
    said = last_lines(log.read_text(encoding="utf-8", errors="replace"), 3).replace("\n", " | ")
    return f"the check ended with {ended}: {said}"


def _end(process: subprocess.Popen[str]) -> None:
    """Ends a check with all that it started, such as Spark's JVM."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()
