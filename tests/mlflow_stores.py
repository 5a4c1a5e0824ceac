"""Empty MLflow stores for tests: MLflow migrates each new database through its whole history, which takes seconds."""

from __future__ import annotations

import functools
import os
import tempfile
from importlib.metadata import version
from pathlib import Path


def put_store(folder: Path) -> str:
    """Puts an empty store into a folder, as `mlflow.db`; returns its URI."""
    (folder / "mlflow.db").write_bytes(_empty_store())
    return f"sqlite:///{folder}/mlflow.db"


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
