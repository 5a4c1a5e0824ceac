"""What the README shows is run as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lakelens.jobs.cli import COMMANDS
from lakelens.jobs.demo.images import write_digits
from lakelens.training.configuration.experiment import ExperimentConfig

README = Path(__file__).resolve().parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [text for name, text in fenced if name == language]


def photos(folder: Path, per_class: int) -> None:
    """Class folders named `photos`, as the README's reader has them."""
    images = write_digits(folder / "digits")
    for file in sorted(images.source.rglob("*.jpg")):
        if int(re.sub(r"\D", "", file.stem)[3:] or 0) <= per_class and file not in images.broken:
            target = folder / "photos" / file.parent.name / file.name
            target.parent.mkdir(parents=True, exist_ok=True)
            file.rename(target)


@pytest.mark.horovod
@pytest.mark.spark
@pytest.mark.timeout(650)
def test_the_quick_start_and_the_training_function_run_as_written(tmp_path: Path) -> None:
    photos(tmp_path, per_class=12)
    for block in blocks("python"):
        script = tmp_path / "block.py"
        script.write_text(block, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, f"{block}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"


@pytest.mark.unit
def test_the_experiment_in_the_readme_is_one(tmp_path: Path) -> None:
    (block,) = blocks("yaml")
    (tmp_path / "experiment.yaml").write_text(block, encoding="utf-8")
    assert ExperimentConfig.read(tmp_path / "experiment.yaml").searcher.metric == "val_accuracy"


@pytest.mark.unit
def test_the_commands_in_the_readme_exist() -> None:
    shown = {name for block in blocks("") for name in re.findall(r"^lakelens (\w+)", block, re.MULTILINE)}
    assert shown
    assert shown <= set(COMMANDS)


@pytest.mark.unit
def test_every_file_that_the_readme_points_at_exists() -> None:
    text = README.read_text(encoding="utf-8")
    targets = [t for t in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in t]
    assert targets
    assert [t for t in targets if not (README.parent / t).exists()] == []
