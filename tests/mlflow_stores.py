"""Empty MLflow stores for tests: MLflow migrates each new database through its whole history, which takes seconds."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path


def put_store(folder: Path) -> str:
    """Puts an empty store into a folder, as `mlflow.db`; returns its URI."""
    (folder / "mlflow.db").write_bytes(_empty_store())
    return f"sqlite:///{folder}/mlflow.db"


@functools.cache
def _empty_store() -> bytes:
    from lakelens.tracking.runs import open_client

    with tempfile.TemporaryDirectory() as folder:
        open_client(f"sqlite:///{folder}/mlflow.db")
        return Path(folder, "mlflow.db").read_bytes()
