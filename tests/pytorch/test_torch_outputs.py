"""Rules of what a PyTorch model may give, and of weights, modes and rates that a Trial keeps beside the optimizer."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from torch_jobs import STEPS, Place, assert_equal_to_the_bit, history, place_in, tensors, train

from lakelens.errors import NotProbabilitiesError, TrialError
from lakelens.training.checkpoints.checkpoint import open_checkpoint
from lakelens.training.checkpoints.torch_files import OPTIMIZER_FILE, read_values
from lakelens.training.segments.backend import PreparedRank
from lakelens.training.segments.job import TrainingJob
from lakelens.training.segments.outcome import SegmentOutcome

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Place:
    return place_in(tmp_path_factory.mktemp("torch"))


@pytest.fixture(scope="module")
def trained(place) -> dict[str, tuple[TrainingJob, SegmentOutcome]]:
    """Three epochs of Trials that keep weights, modes and rates beside the optimizer."""
    jobs = {trial: place.job(f"whole {trial}", trial, epochs=3) for trial in ("Ema", "Frozen")}
    return {trial: (job, train(job)) for trial, job in jobs.items()}


def prepared(job: TrainingJob) -> PreparedRank:
    """Builds a job's Trial in this process, as a rank does before its first step."""
    from lakelens.training.segments.torch.backend import TorchBackend
    from lakelens.training.segments.torch.world import TorchWorld, remember_settings

    restore = remember_settings()
    try:
        return PreparedRank(job, TorchBackend, TorchWorld(), None, None)
    finally:
        restore()


def test_the_last_operation_decides_what_a_model_gives_and_then_the_loss():
    import torch
    from torch import nn
    from torch.nn import functional

    from lakelens.training.segments.torch.checks import loss_takes_logits, operations_give_logits

    images = torch.rand(2, 3, 8, 8)
    linear = [nn.Flatten(), nn.Linear(192, 3)]
    last = {
        "linear": (linear, True),
        "pooled": ([nn.Conv2d(3, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()], True),
        "log softmax": ([*linear, nn.LogSoftmax(1)], True),
        "softmax": ([*linear, nn.Softmax(-1)], False),
        "sigmoid": ([*linear, nn.Sigmoid()], False),
        "clipped": ([*linear, nn.Hardtanh(0, 1)], None),
    }
    for name, (layers, wanted) in last.items():
        assert operations_give_logits(nn.Sequential(*layers)(images)) is wanted, name

    def one_hot(labels):
        return functional.one_hot(labels, 3).float()

    losses = {
        "CrossEntropyLoss": (nn.CrossEntropyLoss(label_smoothing=0.1), True),
        "cross_entropy": (functional.cross_entropy, True),
        "NLLLoss": (nn.NLLLoss(), True),
        "NLLLoss of logarithms": (lambda given, labels: nn.NLLLoss()(given.log(), labels), False),
        "BCEWithLogitsLoss": (lambda given, labels: nn.BCEWithLogitsLoss()(given, one_hot(labels)), True),
        "BCELoss": (lambda given, labels: nn.BCELoss()(given, one_hot(labels)), False),
        "BCELoss of a sigmoid": (lambda given, labels: nn.BCELoss()(given.sigmoid(), one_hot(labels)), True),
        "own": (lambda given, labels: -given.softmax(1)[:, 0].log().mean(), True),
        "mse_loss": (lambda given, labels: functional.mse_loss(given, one_hot(labels)), None),
    }
    clipped = nn.Sequential(*linear, nn.Hardtanh(0, 1))
    for name, (loss, wanted) in losses.items():
        trial = SimpleNamespace(
            preprocess=lambda *batch: batch,
            training_step=lambda model, batch, loss=loss: loss(model(batch[0]), batch[1]),
        )
        assert loss_takes_logits(trial, clipped, images) is wanted, name


@pytest.mark.parametrize(
    ("trial", "keys", "message"),
    [
        ("Ended", {}, "nor its loss shows .*outputs = 'logits' or outputs = 'probabilities'"),
        ("OverRows", {}, "softmax over dimension 0, the rows of a batch.*use dim=1"),
        *(("Outputs", {"form": form}, "a classifier must give one tensor of shape")
          for form in ("dict", "list", "dataclass")),
        ("WrongDirection", {}, r"mode='max'\), which reads 'val_loss', whose best value is its minimum"),
        ("PlateauOfSteps", {}, "scheduler_interval is 'step'; a metric is available once per epoch"),
        ("OfFloats", {}, "the model does not take the feed's images, uint8 .*Make scaling to floats"),
    ],
)  # fmt: skip
def test_what_a_trial_does_wrong_is_named_while_it_is_built(place, trial, keys, message):
    with pytest.raises(TrialError, match=message):
        prepared(place.job(f"wrong {trial} {keys}", trial, hyperparameters=keys))


def test_a_trial_states_what_its_model_gives(place):
    assert prepared(place.job("stated", "Stated")).metadata(0, {})["task"]["values"] == "logits"


@pytest.mark.parametrize(
    ("trial", "keys", "error", "message"),
    [
        ("EmaOutside", {}, TrialError, r"AveragedModel in self\.ema, outside the model of build_model"),
        ("Ended", {"loss": "bce"}, NotProbabilitiesError, "recorded as giving probabilities, but gives values from"),
        ("Matrix", {}, TrialError, r"build_metrics: 'confusion' computes a tensor \[3, 3\]; a metric is one number"),
    ],
)
def test_what_shows_after_the_first_step_is_refused_at_the_validation(place, trial, keys, error, message):
    with pytest.raises(error, match=message):
        train(place.job(f"late {trial}", trial, hyperparameters=keys))


def scored(job, checkpoint) -> float:
    """The mean loss of a saved model on the validation rows, as inference runs it."""
    from lakelens.training.tasks.registry import task_of
    from lakelens.training.trials.torch_model import outputs_of, trained_model

    run = outputs_of(trained_model(checkpoint, job.entrypoint.load()))
    rows, losses = 0, 0.0
    for images, labels, weights in job.validation_feed.with_equal_weights().as_torch(16, image_size=(16, 16)):
        real = (weights > 0).numpy()
        given = run(images.numpy().transpose(0, 2, 3, 1)[real])
        measured = task_of(checkpoint).measure(given, labels.numpy()[real], checkpoint.metadata["task"])
        rows, losses = rows + int(real.sum()), losses + measured["loss"] * real.sum()
    return losses / rows


@pytest.mark.parametrize("trial", ["Ema", "Frozen"])
def test_the_recorded_metrics_are_those_of_the_saved_model(trained, trial):
    job, outcome = trained[trial]
    best = open_checkpoint(outcome.checkpoint)
    assert best.metadata["metrics"]["val_loss"] == min(each["val_loss"] for each in history(job))
    assert scored(job, best) == pytest.approx(best.metadata["metrics"]["val_loss"], abs=1e-5)


@pytest.mark.parametrize("trial", ["Ema", "Frozen"])
def test_a_resumed_training_is_that_of_one_process_to_the_bit(place, trained, trial):
    _, whole = trained[trial]
    job = place.job(f"resumed {trial}", trial, epochs=3)
    outcome = train(job, train(job, until=STEPS + 2).last)
    assert_equal_to_the_bit(open_checkpoint(outcome.last), open_checkpoint(whole.last))


def test_frozen_batch_normalization_keeps_its_statistics_and_a_plateau_lowers_the_rate_by_the_deciding_metric(trained):
    job, outcome = trained["Frozen"]
    last = open_checkpoint(outcome.last)
    values = tensors(last)
    np.testing.assert_array_equal(values["2.running_mean"], np.zeros(4))
    np.testing.assert_array_equal(values["2.running_var"], np.ones(4))
    scheduler = read_values(last.path / OPTIMIZER_FILE)["scheduler"]
    assert scheduler["best"] == pytest.approx(history(job)[0]["val_loss"])
    assert scheduler["_last_lr"] == [0.01 / 4]
