"""Rules of transfer learning: backbones by name with their own preprocessing, and fine-tuning that resumes exactly."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from coloured_tables import CLASSES, coloured_table
from segment_jobs import history, in_a_new_process, job_in

from lakelens.errors import InvalidHyperparameters, TrialError
from lakelens.training.checkpoints.checkpoint import open_checkpoint, save_checkpoint
from lakelens.training.segments.job import TrainingJob
from lakelens.training.segments.outcome import SegmentOutcome
from lakelens.training.tasks.classification import Classification
from lakelens.training.trials.context import TrialContext
from lakelens.training.trials.entrypoint import EntryPoint

pytestmark = pytest.mark.tensorflow

SIDE = 32


def trial(side: int = SIDE, rank: int = 0, **hyperparameters: object):
    from lakelens.training.trials.transfer import Transfer

    given = {"weights": "none"} | hyperparameters
    context = TrialContext(hyperparameters=given, task=Classification(CLASSES), image_size=(side, side), rank=rank)
    return Transfer(context)


# One of each way to preprocess: -1 to 1, blue first, by ImageNet's mean and deviation, and within the backbone.
BACKBONES = [("MobileNet", "VGG16"), pytest.param(("DenseNet121", "EfficientNetB0"), marks=pytest.mark.long)]
PIXELS = np.random.default_rng(0).uniform(0, 255, (2, SIDE, SIDE, 3)).astype("float32")


@pytest.mark.parametrize("backbones", BACKBONES)
def test_preprocessing_is_part_of_the_model_which_keras_loads_safely_by_itself(tmp_path, backbones):
    import importlib

    import keras

    models = {backbone: trial(backbone=backbone).build_model() for backbone in backbones}
    metadata = {"input": {"height": SIDE, "width": SIDE, "channels": 3}}
    saved = {
        backbone: str(save_checkpoint(model, tmp_path / backbone, metadata=metadata).model_path)
        for backbone, model in models.items()
    }
    np.save(tmp_path / "in.npy", PIXELS)
    program = f"""
        import sys
        import keras, numpy
        for backbone, path in {saved!r}.items():
            model = keras.saving.load_model(path, safe_mode=True, compile=False)
            numpy.save(backbone, model(numpy.load("in.npy"), training=False))
        assert not any(name.startswith("lakelens") for name in sys.modules)
        """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=240, cwd=tmp_path)
    for backbone, model in models.items():
        values = np.asarray(model(PIXELS, training=False))
        np.testing.assert_allclose(np.load(tmp_path / f"{backbone}.npy"), values, atol=1e-6)
        build = getattr(keras.applications, backbone)
        inner = next(layer for layer in model.layers if isinstance(layer, keras.Model))
        features = inner(importlib.import_module(build.__module__).preprocess_input(PIXELS.copy()), training=False)
        dense = model.layers[-1](keras.ops.mean(features, axis=(1, 2)))
        np.testing.assert_allclose(values, dense, atol=1e-5)


@pytest.mark.parametrize(
    ("hyperparameters", "words"),
    [
        ({"backbone": "MobilNet"}, "no backbone 'MobilNet'; did you mean 'MobileNet'"),
        ({"backbone": "Xception"}, "Xception of images of 32 x 32 pixels .* must be at least 71x71"),
        ({"backbone": "MobileNet", "fine_tune_layers": 500}, "fine_tune_layers is 500; .* has [0-9]+ layers"),
    ],
)
def test_hyperparameters_that_fit_no_backbone_are_named(hyperparameters, words):
    with pytest.raises(InvalidHyperparameters, match=words):
        trial(**hyperparameters).build_model()


def test_weights_are_read_by_rank_0_from_a_file(tmp_path):
    import keras

    path = tmp_path / "mobilenet.weights.h5"
    given = keras.applications.MobileNet(include_top=False, weights=None, input_shape=(SIDE, SIDE, 3))
    given.save_weights(path)

    def backbone(rank: int):
        model = trial(rank=rank, backbone="MobileNet", weights=str(path)).build_model()
        return next(layer for layer in model.layers if isinstance(layer, keras.Model))

    for mine, theirs in zip(backbone(0).get_weights(), given.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert any((m != t).any() for m, t in zip(backbone(1).get_weights(), given.get_weights(), strict=True))
    with pytest.raises(TrialError, match="the file does not exist; give 'imagenet', 'none' or the path"):
        trial(backbone="MobileNet", weights=str(tmp_path / "absent.h5")).build_model()


@pytest.mark.long
def test_xception_at_299_pixels_takes_a_step():
    made = trial(299, backbone="Xception", fine_tune_layers=2)
    model = made.build_model()
    loss = model.train_on_batch(np.zeros((2, 299, 299, 3), "float32"), np.array([0, 1]))
    assert np.isfinite(loss).all()
    assert len(model.trainable_weights) > 2


# --- fine-tuning ----------------------------------------------------------------------------------------------------

STEPS, EPOCHS, AFTER = 2, 3, 2


def alive(file: Path) -> None:
    """Writes weights with which pixels reach the last layers: by itself each depthwise layer makes them vanish."""
    import keras

    keras.utils.set_random_seed(0)
    backbone = keras.applications.MobileNet(include_top=False, weights=None, input_shape=(SIDE, SIDE, 3))
    for layer in backbone.layers:
        if isinstance(layer, keras.layers.DepthwiseConv2D):
            layer.set_weights([kernel * 2 * kernel.shape[2] ** 0.5 for kernel in layer.get_weights()])
    backbone.save_weights(file)


def job_of(folder: Path, name: str) -> TrainingJob:
    table = folder / "squares"
    if not table.exists():
        coloured_table(table, 20, 6)
        alive(folder / "alive.weights.h5")
    return job_in(
        folder / name,
        table,
        EntryPoint.parse("lakelens.training.trials.transfer:Transfer"),
        hyperparameters={
            "backbone": "MobileNet",
            "weights": str(folder / "alive.weights.h5"),
            "learning_rate": 0.01,
            "fine_tune_layers": 2,
            "fine_tune_after": AFTER,
        },
        image_size=(SIDE, SIDE),
        global_batch_size=10,
        epochs=EPOCHS,
        checkpoint_policy="all",
    )


def weights_of(outcome: SegmentOutcome) -> dict[str, np.ndarray]:
    import keras

    model = open_checkpoint(outcome.last).load_model()
    inner = next(layer for layer in model.layers if isinstance(layer, keras.Model))
    return {weight.path: np.asarray(weight) for weight in [*inner.weights, *model.layers[-1].weights]}


def test_gradients_of_layers_that_are_frozen_for_a_while_are_added_up_too():
    import keras

    import lakelens.hvd as hvd
    from lakelens.training.trials.transfer import FineTuning

    first, last = keras.layers.Dense(4), keras.layers.Dense(1)
    model = keras.Sequential([keras.Input((3,)), first, last])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), backward_passes_per_step=2), "mse")
    model.optimizer.build(model.trainable_variables)
    tuning = FineTuning([first], after=1, rate=0.5)
    rows = np.ones((4, 3), "float32"), np.ones((4, 1), "float32")
    kernels = []

    class Seen(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            kernels.append((np.asarray(first.kernel), np.asarray(last.kernel), float(model.optimizer.learning_rate)))

    kernels.append((np.asarray(first.kernel), np.asarray(last.kernel), 0.1))
    model.fit(*rows, batch_size=1, epochs=2, verbose=0, callbacks=[tuning, Seen()])
    begin, frozen, tuned = kernels
    assert (begin[0] == frozen[0]).all()
    assert (begin[1] != frozen[1]).any()
    assert (frozen[0] != tuned[0]).any()
    assert [rate for _, _, rate in kernels] == pytest.approx([0.1, 0.1, 0.05])


@pytest.mark.long
def test_fine_tuning_trains_the_last_layers_from_its_epoch_on_and_goes_on_exactly_wherever_it_was_cut(tmp_path):
    of_whole, job = job_of(tmp_path, "whole"), job_of(tmp_path, "cut")
    whole = in_a_new_process(of_whole)
    assert whole.step == STEPS * EPOCHS
    outcome, changed = None, []
    # Before fine-tuning within an epoch, at the switch, and after it within an epoch.
    for until in (STEPS + 1, STEPS * AFTER, STEPS * AFTER + 1, None):
        before = weights_of(outcome) if outcome is not None else None
        outcome = in_a_new_process(job, outcome.last if outcome is not None else "", until)
        after = weights_of(outcome)
        if before is not None:
            names = [name for name in before if (before[name] != after[name]).any()]
            changed.append({name.split("/")[-2] for name in names})
    assert [len(names) for names in changed] == [1, 3, 3]
    assert changed[0] < changed[1] == changed[2]
    last = weights_of(outcome)
    for name, weight in weights_of(whole).items():
        np.testing.assert_array_equal(weight, last[name])
    assert history(job) == history(of_whole)
