"""Rules of what a rank checks before it trains."""

from __future__ import annotations

import pytest

from lakelens.errors import CheckpointError
from lakelens.training.checkpoints.checkpoint import state_files, write_checkpoint
from lakelens.training.segments.checks import require_backend
from lakelens.training.trials.entrypoint import EntryPoint

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("backend", "file", "trial", "other"),
    [
        ("torch", "model.safetensors", "small_cnn:SmallCnn", "keras"),
        ("keras", "model.keras", "torch_small_cnn:TorchSmallCnn", "torch"),
    ],
)
def test_a_checkpoint_of_another_framework_is_refused(tmp_path, backend, file, trial, other):
    files = {file: lambda path: path.write_bytes(b""), **state_files({}, {})}
    metadata = {"input": {"height": 8, "width": 8, "channels": 3}, "backend": backend, "step": 6, "metrics": {}}
    given = write_checkpoint(tmp_path, files=files, metadata=metadata, name="epoch-0001")
    words = (
        f"is a checkpoint of a {backend} model, and .*{trial} is a Trial of {other}; .* Give a checkpoint of {other}"
    )
    with pytest.raises(CheckpointError, match=words):
        require_backend(given, EntryPoint.parse(f"lakelens.training.trials.{trial}"))
