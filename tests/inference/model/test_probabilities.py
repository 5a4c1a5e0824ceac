"""Rules of a model that is recorded as giving probabilities, and does not: no number of it gets into a table."""

from __future__ import annotations

import pytest
from colours import NAMES, PROBABILITIES, image_of, layered, save

from lakelens.errors import ModelMismatchError
from lakelens.inference.export.export import export_model
from lakelens.inference.model.compiled import compile_model
from lakelens.inference.model.predictor import build_predictor
from lakelens.inference.model.user_code import UserCode

pytestmark = pytest.mark.tensorflow


def test_values_outside_0_to_1_of_some_images_end_scoring_and_export_and_are_no_error_of_their_rows(tmp_path):
    """For a black image, on which a model is tried, the values are in range."""
    model = layered(lambda values: values * 4 - 1)
    checkpoint, objects = save(model, tmp_path, task=PROBABILITIES), {"Layer": type(model.layers[-1])}
    words = "recorded as giving probabilities, but gives values from"
    with pytest.raises(ModelMismatchError, match=words):
        build_predictor(checkpoint, 1 << 20, 1, UserCode(objects)).predict([image_of(name) for name in NAMES])
    for form in ("savedmodel", "onnx"):
        with pytest.raises(ModelMismatchError, match=words):
            export_model(checkpoint.path, tmp_path / "out", format=form, custom_objects=objects)
        assert not (tmp_path / "out").exists()


def test_a_checkpoint_of_other_code_that_does_not_show_its_values_is_refused_with_the_metadata_to_write(tmp_path):
    model = layered(lambda values: values)
    checkpoint, layer = save(model, tmp_path, task={"name": "classification"}), type(model.layers[-1])
    with pytest.raises(ModelMismatchError, match=r"neither the checkpoint nor .*'task': \{'values': 'logits'\}"):
        compile_model(checkpoint, {"Layer": layer})
    described = save(layered(lambda values: values), tmp_path / "described", task=PROBABILITIES)
    assert compile_model(described, {"Layer": layer}).answer_shape == (3,)
