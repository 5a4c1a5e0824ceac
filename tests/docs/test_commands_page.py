"""The generated parts of pages, the tables of commands, and the examples of experiments."""

from __future__ import annotations

import argparse
import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest
from references import PARTS, commands, on_page_markdown
from result_keys import PAGE, result_keys

from lakelens.etl import files
from lakelens.etl.images import colours, geometry, recipe
from lakelens.etl.ingest.results import IngestPreview, IngestResult, StreamResult
from lakelens.etl.versions.delta_commands import OptimizeResult, RestoreResult
from lakelens.etl.versions.edits import DeleteResult, RenameResult, RepairResult
from lakelens.inference.export.export import ExportResult
from lakelens.inference.model.registry import RegisteredVersion
from lakelens.inference.promotion import Promotion, Staleness
from lakelens.inference.scoring.score import ScoreResult
from lakelens.jobs import etl, schema, train
from lakelens.tracking.run_listing import RunDetails, RunSummary
from lakelens.training.configuration.experiment import ExperimentConfig
from lakelens.training.configuration.sections import Resources
from lakelens.training.experiment.run_trial import TrainResult

pytestmark = pytest.mark.unit


def test_each_mark_of_a_page_is_replaced_by_the_part_that_it_names() -> None:
    marks = [
        mark
        for page in PAGE.parent.rglob("*.md")
        for mark in re.findall(r"^<!-- generated: (.+) -->$", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert sorted(marks) == sorted(PARTS)
    text = on_page_markdown(PAGE.read_text(encoding="utf-8"))
    assert "<!-- generated" not in text
    assert "- `--verify {stamp,content}`: how unchanged" in text
    assert "all are counted (default: `1000`)" in text
    for name in ("table vacuum", "models promote", "runs pause"):
        assert f"## lakelens {name}\n" in text
    assert all(f"\n| {code} | " in text for code in (0, 1, 2, 130, 141, 143))


def test_the_page_tells_of_every_command_that_runs_what_it_does_and_returns() -> None:
    only_actions = {"table", "models", "search"}
    names = {one.name for one in commands()} - only_actions
    assert {name for name, _ in result_keys()} == names
    text = PAGE.read_text(encoding="utf-8")
    (reading,) = re.findall(r"^Nothing: `(.+)`\.$", text, re.MULTILINE)
    writing = re.findall(r"^\| \[([a-z -]+)\]\(#", text, re.MULTILINE)
    assert sorted([*reading.split("`, `"), *writing]) == sorted(names)


@pytest.mark.parametrize("page", [PAGE.with_name("experiments.md"), PAGE.parents[1] / "README.md"])
def test_the_examples_of_experiments_are_experiments(page: Path, tmp_path: Path) -> None:
    examples = re.findall(r"^```yaml\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert examples
    for example in examples:
        (tmp_path / "experiment.yaml").write_text(example, encoding="utf-8")
        ExperimentConfig.read(tmp_path / "experiment.yaml")


def test_the_choices_of_flags_are_those_of_the_library() -> None:
    assert etl.LAYOUTS == files.LAYOUTS
    assert (etl.RESIZES, etl.RESAMPLINGS) == (geometry.RESIZES, colours.RESAMPLINGS)
    assert etl.DRAWN_ON == geometry.DRAWN_ON
    assert get_args(Resources.model_fields["strategy"].annotation) == train.STRATEGIES
    assert (etl.STORES, etl.SUBSAMPLINGS) == (recipe.STORES, colours.SUBSAMPLINGS)


def test_the_page_has_the_keys_of_the_results() -> None:
    """The results that are written as they are; others are compared where a test runs the command."""
    for command, flags, more, kind in (
        ("etl", "", ["table"], IngestResult),
        ("etl", "--dry-run", ["table", "dry_run"], IngestPreview),
        ("etl", "--stream", ["table"], StreamResult),
        ("table restore", "", ["table"], RestoreResult),
        ("table repair", "", ["table"], RepairResult),
        ("table optimize", "", ["table"], OptimizeResult),
        ("table delete", "", ["table"], DeleteResult),
        ("table rename-class", "", ["table"], RenameResult),
        ("train", "", [], TrainResult),
        ("runs show", "", [], RunDetails),
        ("runs pause", "", [], RunSummary),
        ("runs kill", "", [], RunSummary),
        ("score", "", [], ScoreResult),
        ("export", "", [], ExportResult),
        ("models alias", "", ["model"], RegisteredVersion),
        ("models promote", "", ["model"], Promotion),
        ("models stale", "", [], Staleness),
    ):
        found = [*more, *(one.name for one in fields(kind))]
        assert sorted(result_keys()[command, flags]) == sorted(found), (command, flags)
    assert list(schema.run(argparse.Namespace())) == result_keys()["schema", ""]
