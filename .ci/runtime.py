"""Installs lakelens beside the packages of a Databricks runtime, names what pip changed, and runs one story there.

    .ci/runtime STACK [--without-horovod]      STACK is a file of constraints/runtimes

Fails when pip changes another set of packages than the file marks with `# replaced`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
RUNTIMES = CHECKOUT / "constraints" / "runtimes"


def main() -> int:
    """Makes the environment, installs the wheel, checks the changes, runs the story."""
    parser = argparse.ArgumentParser(prog=".ci/runtime")
    parser.add_argument("stack", choices=sorted(path.stem for path in RUNTIMES.glob("*.txt")))
    parser.add_argument("environment", type=Path)
    parser.add_argument("--without-horovod", action="store_true", help="one process; nothing is compiled")
    args = parser.parse_args()
    environment = args.environment.absolute()
    listed = RUNTIMES / f"{args.stack}.txt"
    row = environment.with_name(f"{environment.name}.story")
    row.write_text(f"| {args.stack} | | not installed | |\n", encoding="utf-8")
    changed = _install(environment, listed)
    _say(f"packages of {args.stack} that pip changed: {', '.join(changed.values()) or 'none'}")
    expected = set(re.findall(r"^([\w.-]+)==.*# replaced", listed.read_text(encoding="utf-8"), re.MULTILINE))
    if not args.without_horovod:
        command = [environment / "bin/python", "-m", "lakelens.horovod_build"]
        subprocess.run(command, cwd=environment, env=_environment(), check=True)
    started = time.monotonic()
    code = _run_story(environment / "bin/pytest")
    result = "passed" if code == 0 and set(changed) == expected else "failed"
    text = f"| {args.stack} | {', '.join(changed) or 'none'} | {result} | {time.monotonic() - started:.0f} s |"
    row.write_text(f"{text}\n", encoding="utf-8")
    _say(text)
    if set(changed) != expected:
        _say(f"error: {listed.relative_to(CHECKOUT)} marks {sorted(expected)}, and pip changed {sorted(changed)}")
        return 1
    return code


def _run_story(pytest: Path) -> int:
    """Runs the story in another folder than the checkout, so that the installed wheel is what runs."""
    # Without the tests' conftest, which sets Java up for short sessions and asks for more packages.
    options = ["--rootdir", str(CHECKOUT), "-c", str(CHECKOUT / "pyproject.toml"), "-p", "no:cacheprovider"]
    options += ["--noconftest", "-q", "-s"]
    command = [str(pytest), str(CHECKOUT / "tests/packaging/runtime_story.py"), *options]
    with tempfile.TemporaryDirectory(prefix="lakelens-story-") as folder:
        return subprocess.run(command, cwd=folder, env=_environment(), check=False).returncode


def _install(environment: Path, listed: Path) -> dict[str, str]:
    """Makes an environment with the runtime's packages, once, and installs the wheel of the checkout in a copy's place.

    Returns:
        For each package of the runtime that pip changed: its name and both versions.
    """
    fingerprint = hashlib.sha256(listed.read_bytes() + (CHECKOUT / "setup.py").read_bytes()).hexdigest()
    python, notes = environment / "bin" / "python", environment / "runtime.json"
    known = json.loads(notes.read_text(encoding="utf-8")) if notes.exists() else {}
    if known.get("fingerprint") != fingerprint:
        shutil.rmtree(environment, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        command = [python, CHECKOUT / ".ci" / "packages.py", "--quiet", "--requirement", listed]
        subprocess.run(command, env=_environment(), check=True)
        known = {"fingerprint": fingerprint, "runtime": _versions(python)}
    with tempfile.TemporaryDirectory() as scratch:
        _pip(python, "wheel", "--no-deps", "--wheel-dir", scratch, str(CHECKOUT))
        wheel = next(Path(scratch).glob("lakelens-*.whl"))
        # pip keeps the bounds of an installed package only if it is named: MLflow would bring another protobuf.
        _pip(python, "install", f"{wheel}[databricks]", "tensorflow-cpu")
        _pip(python, "install", "--no-deps", "--force-reinstall", str(wheel))
    _pip(python, "check")
    notes.write_text(json.dumps(known), encoding="utf-8")
    after = _versions(python)
    names = set(re.findall(r"^([\w.-]+)==", listed.read_text(encoding="utf-8"), re.MULTILINE))
    return {
        name: f"{name} {version} -> {after.get(name, 'removed')}"
        for name, version in sorted(known["runtime"].items())
        if name in names and after.get(name) != version
    }


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _pip(python: Path, *arguments: str) -> None:
    quiet = [] if arguments[0] == "check" else ["--quiet"]
    subprocess.run([python, "-m", "pip", *arguments, *quiet], env=_environment(), cwd=python.parent, check=True)


def _versions(python: Path) -> dict[str, str]:
    """Reads the version of every installed package."""
    command = [python, "-m", "pip", "list", "--format", "json"]
    listed = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=True).stdout
    return {re.sub(r"[-_.]+", "-", one["name"]).lower(): one["version"] for one in json.loads(listed)}


def _environment() -> Mapping[str, str]:
    dropped = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_USER", "PIP_CONSTRAINT", "SPARK_HOME")
    return {name: value for name, value in os.environ.items() if name not in dropped}


if __name__ == "__main__":
    sys.exit(main())
