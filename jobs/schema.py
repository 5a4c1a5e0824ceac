"""Prints the JSON schema of the experiment file, with which editors complete and check it (`lakelens schema`)."""

from __future__ import annotations

import argparse
from typing import Any

DESCRIPTION = "Print the JSON schema of the experiment file."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the job's flags: there are none."""


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the schema."""
    from lakelens.training.configuration.experiment import ExperimentConfig

    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **ExperimentConfig.model_json_schema()}
