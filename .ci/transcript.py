"""Runs what docs/migration/transcript.md shows, and writes what was printed into the page again.

`python .ci/transcript.py [PAGE]` writes the page, or a copy of it to PAGE. Its blocks are files, each after its name,
changes of their lines (`diff`), and commands (`text`, after `$`) with what they print. RUN in a command is the run of
the last training.
"""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "docs" / "migration" / "transcript.md"
_BLOCK = re.compile(
    r"`(?P<file>[\w.]+)`:\n\n```(?P<kind>\w+)\n(?P<content>.*?)```\n|```text\n\$ (?P<command>[^\n]+)\n.*?```\n",
    re.DOTALL,
)
# Lines of a bar, of one that follows the clock, of the start of Java and TensorFlow, and about a feed.
_LEFT_OUT = re.compile(
    r"\d+%\||images/s|\d\d:\d\d<|^WARNING: |^[IWE]\d{4} |^To enable |^\S+ \S+ WARN |^Setting default|^$"
    r"|feed \S+@\d+: each of"
)


def told(command: str, folder: Path) -> tuple[int, str]:
    """Runs a command in a terminal; returns its exit code and what it has shown."""
    words = [sys.executable, *shlex.split(command)[1:]]
    if command.startswith("lakelens "):
        words[1:1] = ["-m", "lakelens.jobs.cli"]
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    with subprocess.Popen(words, cwd=folder, env=environment, stdout=theirs, stderr=theirs, stdin=theirs) as process:
        os.close(theirs)
        shown = b""
        while part := _read(ours):
            shown += part
    os.close(ours)
    return process.returncode, shown.decode(errors="replace").replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # as Linux ends the reading of a terminal that all have closed
        return b""


def normalised(shown: str, folder: Path) -> str:
    """Leaves out what differs from run to run, other than numbers."""
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown).replace(f"{ROOT}/", "lakelens/").replace(f"{folder}/", "")
    lines = [line.rpartition("\r")[2].rstrip() for line in text.replace(str(folder), ".").split("\n")]
    text = "".join(f"{line}\n" for line in lines if not _LEFT_OUT.search(line))
    text = re.sub(r"\b([0-9a-f]{4})[0-9a-f]{28,60}\b", r"\1...", text)
    return re.sub(r"( of \d+ on )[\w.-]+", r"\1HOST", text)


def page(source: str, folder: Path) -> str:
    """Writes the files and runs the commands of a page in a folder; returns the page with what was printed."""
    run = ""

    def block(found: re.Match[str]) -> str:
        nonlocal run
        if found["command"] is None:
            file = folder / found["file"]
            is_change = found["kind"] == "diff"
            text = changed(file.read_text("utf-8"), found["content"]) if is_change else found["content"]
            file.write_text(text, encoding="utf-8")
            return found[0]
        code, shown = told(re.sub(r"\bRUN\b", run, found["command"]), folder)
        run = next(iter(re.findall(r'"run_id": "(\w+)"', shown)), run)
        end = f"(exit code {code})\n" if code else ""
        return f"```text\n$ {found['command']}\n{normalised(shown, folder)}{end}```\n"

    return _BLOCK.sub(block, source)


def changed(text: str, change: str) -> str:
    """Replaces the lines after `-` by those after `+`; a missing one is an error."""
    for removed, added in re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)*)", change, re.MULTILINE):
        before, after = (re.sub(r"^.", "", lines, flags=re.MULTILINE) for lines in (removed, added))
        if before not in text:
            raise ValueError(f"no lines {before!r} to change")
        text = text.replace(before, after)
    return text


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        written = page(SOURCE.read_text("utf-8"), Path(scratch).resolve())
    Path(sys.argv[1] if len(sys.argv) > 1 else SOURCE).write_text(written, encoding="utf-8")
