"""The benchmark of detection: a detector that learns the pasted digits in little time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import detection
from lakelens.training.experiment.train import train


@pytest.mark.long
@pytest.mark.spark
def test_a_detector_finds_digits_that_it_has_never_seen_after_a_short_training(spark, tmp_path):
    table = detection.write_table(spark, tmp_path, images=500, held_out=60, side=128)
    more = {"learning_rate": 1.5e-3, "global_batch_size": 8}
    config = detection.experiment(table, tmp_path / "short", epochs=14, ranks=1, **more)
    result = train(config | {"min_validation_period": {"epochs": 14}})
    assert result.metrics["val_map50"] >= 0.4
