"""Rules of the pictures of a training's end."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from lakelens.errors import InvalidArgumentError
from lakelens.training.record.run_plots import draw_learning_curves

pytestmark = pytest.mark.unit


def test_learning_curves_show_one_epoch_and_metrics_without_validation():
    picture = draw_learning_curves({"loss": [(1, 0.5)], "val_loss": [(1, float("nan"))], "accuracy": [(1, 0.5)]}, 1)
    assert Image.open(io.BytesIO(picture)).format == "PNG"
    with pytest.raises(InvalidArgumentError, match="no metric"):
        draw_learning_curves({"loss": []})
