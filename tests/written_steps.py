"""The steps that the DAGs of a new project run, as `lakelens init` has written them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def steps_of(project: Path) -> ModuleType:
    """Loads the file beside the project's DAGs, under a name that nothing else has."""
    spec = importlib.util.spec_from_file_location("written_steps", project / "airflow" / "lakelens_steps.py")
    assert spec is not None
    assert spec.loader is not None
    steps = importlib.util.module_from_spec(spec)
    sys.modules["written_steps"] = steps
    spec.loader.exec_module(steps)
    return steps
