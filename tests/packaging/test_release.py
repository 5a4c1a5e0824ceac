"""The files of a release name commands, targets and paths that exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
# The owner in a URL; the text about the placeholder and the command that replaces it keep the word.
_PLACEHOLDER = re.compile(rb"OWNER(?:/\w|\.github)")


def test_the_workflow_runs_targets_and_files_that_exist() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8"))["jobs"]
    lines = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert any("test_readme.py" in line for line in lines)
    for line in lines:
        words = line.split()
        if words[0] == "make":
            assert set(words[1:]) <= set(targets), line
        for word in words:
            assert not word.startswith(("tests/", ".ci/")) or (ROOT / word).is_file(), line


def test_the_image_installs_an_extra_and_a_stack_that_exist() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    (extra,) = re.findall(r"^ARG EXTRA=(.+)$", text, re.MULTILINE)
    assert f'"{extra}":' in (ROOT / "setup.py").read_text(encoding="utf-8")
    for file in re.findall(r"constraints/\S+\.txt", text):
        assert (ROOT / file).is_file(), file
    assert re.findall(r"^FROM python:(\d+\.\d+)", text, re.MULTILINE) == ["3.12", "3.12"]


def test_templates_of_issues_are_forms_that_github_reads() -> None:
    for name in ("bug", "feature"):
        form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text(encoding="utf-8"))
        assert {"name", "description", "body"} <= set(form)
        assert len({part["id"] for part in form["body"]}) == len(form["body"])


def test_the_readme_has_less_than_150_lines() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 150


def test_an_entry_of_the_changelog_has_at_most_forty_lines() -> None:
    entries = re.split(r"(?m)^## ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))[1:]
    assert entries
    for entry in entries:
        assert len(entry.rstrip().splitlines()) <= 40, entry.splitlines()[0]


def test_the_documented_line_replaces_the_placeholder_of_every_url(tmp_path: Path) -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^git grep .*OWNER.*$", text, re.MULTILINE)
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    before = 0
    for name in filter(None, tracked.split("\0")):
        content = (ROOT / name).read_bytes() if (ROOT / name).is_file() else b""
        if b"OWNER" in content:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(content)
            before += len(_PLACEHOLDER.findall(content))
    assert before > 10
    for command in ("git init -q", "git add -A", line):
        subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    left = [path for path in tmp_path.rglob("*") if path.relative_to(tmp_path).parts[0] != ".git" and path.is_file()]
    assert [path for path in left if _PLACEHOLDER.search(path.read_bytes())] == []
    assert "https://github.com/acme/lakelens" in (tmp_path / "setup.py").read_text(encoding="utf-8")
