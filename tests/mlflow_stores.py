"""MLflow stores for tests, and models without content in their runs.

MLflow migrates each new database through its whole history, which takes seconds; here each is a copy of one.
"""

from __future__ import annotations

import functools
import os
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any


def put_store(folder: Path) -> str:
    """Puts an empty store into a folder, as `mlflow.db`; returns its URI."""
    (folder / "mlflow.db").write_bytes(_empty_store())
    return f"sqlite:///{folder}/mlflow.db"


def log_bare_model(client: Any, run_id: str, digest: str, folder: Path) -> None:
    """Gives a run an MLflow model that belongs to a checkpoint and that nothing can load; `folder` gets its file."""
    from mlflow.models import Model

    from lakelens.tracking.logged_models import ModelFolder, log_model

    Model(run_id=run_id).save(str(folder / "MLmodel"))
    log_model(client, run_id, ModelFolder(folder, digest), 1)


@functools.cache
def _empty_store() -> bytes:
    """The database of a new store, which the first process that needs one of this MLflow keeps in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lakelens" / "stores"
    kept = cache / f"mlflow-{version('mlflow')}.db"
    if not kept.exists():
        from lakelens.tracking.runs import open_client

        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            open_client(f"sqlite:///{folder}/mlflow.db")
            Path(folder, "mlflow.db").rename(kept)
    return kept.read_bytes()
