"""Rules of trainings of PyTorch models: what holds for Keras in the loop holds here, on one rank and on two."""

from __future__ import annotations

import doctest

import pytest
from torch_jobs import BATCH, EPOCHS, STEPS, Place, assert_equal_to_the_bit, by_hand, history, place_in, tensors, train

import lakelens
from lakelens.errors import NotFiniteError, RankFailedError, TrialError
from lakelens.training.checkpoints.checkpoint import open_checkpoint
from lakelens.training.checkpoints.torch_files import OPTIMIZER_FILE, read_values
from lakelens.training.segments.outcome import SegmentOutcome
from lakelens.training.segments.training_state import TrainingState

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Place:
    return place_in(tmp_path_factory.mktemp("torch"))


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank", "two ranks"])
def ranks(request) -> int:
    return request.param


@pytest.fixture(scope="module")
def whole(place, ranks):
    """A training that nothing has interrupted."""
    job = place.job(f"whole {ranks}")
    outcome = train(job, ranks=ranks)
    return history(job), open_checkpoint(outcome.last), outcome


@pytest.fixture(scope="module")
def plain(place) -> SegmentOutcome:
    """Two epochs of one process, in which nothing draws noise."""
    return train(place.job("plain", "Plain", epochs=2))


def test_the_example_of_the_docstring_learns(tmp_path):
    place = place_in(tmp_path)
    example = doctest.DocTestParser().get_examples(lakelens.TorchTrial.__doc__)
    source = "".join(part.source for part in example)
    (tmp_path / "trials.py").write_text(f"import lakelens\n\n{source}")
    job = place.job("example", "Linear", epochs=6, hyperparameters={"learning_rate": 0.05})
    outcome, measured = train(job), history(job)
    assert (len(example), outcome.epochs) == (1, 6)
    assert measured[-1]["val_loss"] < measured[0]["val_loss"]


def test_a_model_learns_and_its_metrics_are_those_of_the_task_and_of_the_step(whole, ranks):
    measured, _, outcome = whole
    assert (outcome.step, outcome.epochs, outcome.ranks) == (EPOCHS * STEPS, EPOCHS, ranks)
    assert measured[-1]["loss"] < measured[0]["loss"]
    assert "val_accuracy" in outcome.metrics
    assert measured[-1]["double"] == pytest.approx(2 * measured[-1]["loss"])
    best = open_checkpoint(outcome.checkpoint)
    assert best.backend == "torch"
    assert best.metadata["task"] == {"name": "classification", "values": "logits"}
    assert sorted(path.name for path in best.path.iterdir()) == [
        "manifest.json", "model.safetensors", "optimizer.safetensors", "state.json", "state.npz",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("trial", "rows", "rules"),
    [("Plain", "odd", {}), ("EmaPlain", "squares", {"aggregation_frequency": 2, "gradient_clip_norm": 0.5})],
)
def test_two_ranks_train_as_one_process_on_the_rows_of_both_also_an_average_of_weights(place, trial, rows, rules):
    """Of the odd table the second rank has no row in the last batch of an epoch, and none to validate on."""
    jobs = [place.job(f"{rows} {size}", trial, rows, optimizations=rules, epochs=2) for size in (1, 2)]
    one, two = (train(job, ranks=size) for size, job in enumerate(jobs, 1))
    alone, shared = (tensors(open_checkpoint(outcome.last)) for outcome in (one, two))
    for name in alone:
        assert alone[name].sub(shared[name]).abs().max() < 1e-6, name
    for mine, theirs in zip(*map(history, jobs), strict=True):
        assert mine == pytest.approx(theirs, abs=1e-5)


@pytest.mark.parametrize("rows", ["one over", "odd"])
def test_torchmetrics_give_on_two_ranks_what_they_give_in_one_process(place, rows):
    """17 rows in batches of 16 are 9 and 8; of 1 row the second rank has none."""
    found = []
    for ranks in (1, 2):
        job = place.job(f"measured {rows} {ranks}", "Measured", rows, epochs=1)
        train(job, ranks=ranks)
        found.append({name: history(job)[-1][f"val_{name}"] for name in ("acc", "auroc", "kappa", "accuracy", "loss")})
    alone, shared = found
    assert shared == pytest.approx(alone, abs=1e-6, nan_ok=True)
    if rows != "odd":
        assert len({round(alone[name], 3) for name in ("acc", "auroc", "kappa")}) == 3


def test_two_ranks_with_every_optimization_train_as_a_loop_by_hand(place):
    """Autocast, float16 gradients between ranks, a scaled rate and a warm-up that ends within the second epoch."""
    rules = {"mixed_precision": "bfloat16", "gradient_compression": "fp16"}
    rates = {"learning_rate_scaling": "sqrt", "warmup_epochs": 1.5}
    job = place.job("optimized", "Plain", epochs=2, optimizations=rules | rates)
    found, wanted = tensors(open_checkpoint(train(job, ranks=2).last)), by_hand(job, 2, 2**0.5, 9)
    for name, tensor in wanted.items():
        assert tensor.sub(found[name]).abs().max() < 1e-6, name


def test_a_training_that_goes_on_in_another_process_is_that_of_one_to_the_bit(place, whole, ranks):
    job = place.job(f"cut {ranks}")
    paused = train(job, until=2 * STEPS + 3, ranks=ranks)
    assert paused.step == 2 * STEPS + 3
    outcome = train(job, paused.last, ranks=ranks)
    measured, last, uninterrupted = whole
    assert (outcome.step, outcome.epochs) == (EPOCHS * STEPS, EPOCHS)
    assert history(job) == measured
    assert outcome.metrics == uninterrupted.metrics
    assert_equal_to_the_bit(open_checkpoint(outcome.last), last)


def test_a_training_whose_rank_is_killed_goes_on_from_its_last_checkpoint_to_the_same_result(place, whole, ranks):
    job = place.job(f"killed {ranks}", min_checkpoint_period={"batches": 4})
    once = place.folder / f"killed once {ranks}"
    outcome = train(job, ranks=ranks, restarts=1, KILL_AT="22", KILL_ONCE=str(once))
    measured, last, _ = whole
    assert once.exists()
    assert history(job) == measured
    assert_equal_to_the_bit(open_checkpoint(outcome.last), last)


def test_gradients_that_are_not_applied_yet_and_the_loss_scale_of_float16_are_kept(place):
    rules = {"aggregation_frequency": 4, "mixed_precision": "float16", "gradient_clip_norm": 0.5}
    jobs = [place.job(f"added up {cut}", optimizations=rules, epochs=2) for cut in (False, True)]
    uninterrupted = train(jobs[0])
    paused = train(jobs[1], until=STEPS)
    assert any(name.startswith("0/gradient/") for name in open_checkpoint(paused.last).arrays())
    outcome = train(jobs[1], paused.last)
    assert_equal_to_the_bit(open_checkpoint(outcome.last), open_checkpoint(uninterrupted.last))
    scales = [
        read_values(open_checkpoint(each.last).path / OPTIMIZER_FILE)["scaler"] for each in (outcome, uninterrupted)
    ]
    assert scales[0] == scales[1]
    assert scales[0]["_growth_tracker"] == 2 * STEPS // 4
    assert history(jobs[1])[0]["loss"] > history(jobs[1])[-1]["loss"]


def test_a_training_continues_at_another_number_of_ranks_with_the_rows_that_are_left(place, plain):
    job = place.job("resized", "Plain", epochs=2)
    paused = train(job, until=STEPS + 2, ranks=2)
    state = TrainingState.of(open_checkpoint(paused.last))
    assert state.position["row"] == 2 * BATCH
    outcome = train(job, paused.last)
    one, other = (tensors(open_checkpoint(each.last)) for each in (outcome, plain))
    for name in one:
        assert one[name].sub(other[name]).abs().max() < 1e-6, name


@pytest.mark.parametrize(
    ("trial", "ranks", "rules", "error", "message"),
    [
        ("NoLoss", 1, {}, TrialError, "training_step returned None as its loss; return a tensor of one number"),
        ("Detached", 1, {}, TrialError, r"training_step returned Tensor \(\) as its loss"),
        ("Unused", 2, {}, TrialError, "does not depend on head.weight, head.bias, so they get no gradients"),
        ("Diverging", 1, {}, NotFiniteError, "loss is nan after step 6"),
        ("Short", 2, {}, RankFailedError, "build_training_dataset gave 5 batches of an epoch of 6"),
        ("Noisy", 2, {"sync_batch_norm": True}, TrialError, "needs a GPU for each rank: .* has no CPU version"),
    ],
)
def test_what_ranks_cannot_train_is_named(place, trial, ranks, rules, error, message):
    with pytest.raises(error, match=message):
        train(place.job(f"wrong {trial}", trial, optimizations=rules), ranks=ranks)
