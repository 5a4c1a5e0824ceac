"""The page about experiments has every key, and its examples are read as they stand there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from references import markdown_lists

from lakelens.training.configuration.experiment import ExperimentConfig
from lakelens.training.configuration.lengths import Length
from lakelens.training.configuration.yaml_file import read_yaml

pytestmark = pytest.mark.unit

PAGE = Path(__file__).resolve().parents[2] / "docs" / "experiments.md"


def keys_of(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        for option in (field.annotation, *get_args(field.annotation)):
            if isinstance(option, type) and issubclass(option, BaseModel) and option is not Length:
                yield from keys_of(option, f"{prefix}{name}.")


def keys_in(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        yield f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from keys_in(value, f"{prefix}{name}.")


def examples(folder: Path) -> list[Path]:
    found = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    files = [folder / f"{number}.yaml" for number in range(len(found))]
    for file, text in zip(files, found, strict=True):
        file.write_text(text, encoding="utf-8")
    return files


def test_every_key_has_a_description() -> None:
    assert not re.search(r": ?$", markdown_lists(), re.MULTILINE)


def test_the_examples_are_experiments_and_show_every_key(tmp_path: Path) -> None:
    shown: set[str] = set()
    for file in examples(tmp_path):
        ExperimentConfig.read(file)
        shown |= set(keys_in(read_yaml(file).values))
    assert set(keys_of(ExperimentConfig)) <= shown
