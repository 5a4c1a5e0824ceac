"""The best trial of a search as an experiment that trains it alone; pure."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML

from ...training.configuration.searcher import SINGLE
from .history import SearchHistory


def best_experiment(history: SearchHistory) -> str | None:
    """Writes the experiment file of the best trial; None if no trial has a metric."""
    trial = history.best
    if trial is None or trial.best is None:
        return None
    values = history.config.model_dump(mode="json", exclude_unset=True)
    searcher = history.config.searcher
    values["hyperparameters"] = _as_written(trial.hyperparameters)
    values["searcher"] = {
        "name": SINGLE,
        "metric": history.metric,
        "smaller_is_better": history.minimized,
        "max_length": {searcher.max_length.unit: searcher.max_length.amount},
    }
    for key in ("max_slots", "priority"):
        values.get("resources", {}).pop(key, None)
    values.pop("job", None)
    text = io.StringIO()
    value, where = f"{history.metric} {trial.best.metric:.6g}", history.lengths(trial.best.length)
    text.write(f"# Trial {trial.number} of a search: {value} after {where}.\n")
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style, writer.width = False, 120
    setattr(writer, "sort_base_mapping_type_on_output", False)  # noqa: B010  # ruamel types it as None
    writer.dump(values, text)
    return text.getvalue()


def _as_written(values: Mapping[str, Any]) -> dict[str, Any]:
    """Writes drawn values so that an experiment reads the same ones: those with mappings in them become constants."""
    return {name: _node(value) for name, value in values.items()}


def _node(value: Any) -> Any:
    if isinstance(value, Mapping) and not {"type", "val", "vals", "minval", "maxval"} & value.keys():
        return _as_written(value)
    if isinstance(value, (Mapping, list)):
        return {"type": "const", "val": value}
    return value
