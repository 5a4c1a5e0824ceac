"""From a run, an alias, an experiment or a path to the checkpoint that it means: as trainings find it too."""

from __future__ import annotations

from ...training.checkpoints.references import FORMS, ModelRef, all_pages, best_run, resolve_model, version_numbers

__all__ = ["FORMS", "ModelRef", "all_pages", "best_run", "resolve_model", "version_numbers"]
