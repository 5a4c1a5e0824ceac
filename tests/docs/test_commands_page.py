"""The pages of commands are those of the parsers."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from lakelens.etl.ingest.results import IngestPreview, IngestResult, StreamResult
from lakelens.etl.versions.delete import DeleteResult
from lakelens.etl.versions.optimize import OptimizeResult
from lakelens.etl.versions.rename_class import RenameResult
from lakelens.etl.versions.repair import RepairResult
from lakelens.etl.versions.restore import RestoreResult
from lakelens.inference.model.registry import RegisteredVersion
from lakelens.inference.promotion import Due, Promotion
from lakelens.inference.scoring.score import ScoreResult
from lakelens.jobs.contracts import CONTRACTS
from lakelens.jobs.reference import COMMAND, commands, machine_readable, markdown
from lakelens.tracking.run_listing import RunDetails, RunSummary
from lakelens.training.configuration.reference import json_schema
from lakelens.training.experiment.run_trial import TrainResult

pytestmark = pytest.mark.unit

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_pages_have_the_commands_and_flags_that_there_are() -> None:
    described = commands()
    for name, text in (("commands.json", machine_readable(described)), ("commands.md", markdown(described))):
        assert (DOCS / name).read_text(encoding="utf-8") == text, f"the flags have changed; run {COMMAND}"
    described_here = json.loads((DOCS / "commands.json").read_text(encoding="utf-8"))
    by_name = {one["command"]: one for one in described_here["commands"]}
    etl = {argument["name"]: argument for argument in by_name["lakelens etl"]["arguments"]}
    assert (etl["source"]["required"], etl["--class NAME"]["repeatable"]) == (True, True)
    assert etl["--removed REMOVED"]["default"] == "keep"
    (seed,) = (one for one in by_name["lakelens train"]["arguments"] if one["name"] == "--seed SEED")
    assert seed["default"] == 0
    assert {"lakelens table vacuum", "lakelens models promote", "lakelens experiments pause"} <= set(by_name)
    assert set(described_here["exit_codes"]) == {"0", "1", "2", "130", "141", "143"}


def test_every_command_that_runs_has_a_contract() -> None:
    by_name = {one["command"].removeprefix("lakelens "): one for one in commands()}
    only_actions = {"table", "models"}
    assert set(CONTRACTS) == set(by_name) - only_actions
    for name in CONTRACTS:
        assert [key for key in ("reads", "writes", "result", "retry") if not by_name[name][key]] == [], name


def test_contracts_have_the_keys_of_the_results() -> None:
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
        ("experiments resume", "", [], TrainResult),
        ("experiments show", "", [], RunDetails),
        ("experiments pause", "", [], RunSummary),
        ("experiments kill", "", [], RunSummary),
        ("score", "", [], ScoreResult),
        ("models register", "", ["model"], RegisteredVersion),
        ("models alias", "", ["model"], RegisteredVersion),
        ("models promote", "", ["model"], Promotion),
        ("models due", "", [], Due),
    ):
        contract = CONTRACTS[command]
        keys = contract.variants[flags] if flags else contract.result
        assert sorted(keys.split()) == sorted([*more, *(one.name for one in fields(kind))]), (command, flags)
    assert list(json_schema()) == CONTRACTS["schema"].result.split()
