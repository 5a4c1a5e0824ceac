"""Rules of trainings in segments: what was interrupted goes on exactly, in processes of its own."""

from __future__ import annotations

import os
import shutil
import textwrap
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from segment_jobs import EPOCHS, NOISY, STEPS, Place, assert_equal_to_the_bit, history, in_a_new_process, place_in

from lakelens.training.checkpoints.checkpoint import Checkpoint, open_checkpoint
from lakelens.training.segments.segment import train_segment
from lakelens.training.segments.training_state import TrainingState, of_rank
from lakelens.training.trials.entrypoint import EntryPoint


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Place:
    return place_in(tmp_path_factory.mktemp("segments"))


@pytest.fixture(scope="module")
def whole(place) -> SimpleNamespace:
    """A training that nothing has interrupted."""
    job = place.job("whole")
    outcome = in_a_new_process(job)
    return SimpleNamespace(history=history(job), last=open_checkpoint(outcome.last), outcome=outcome)


@pytest.mark.tensorflow
@pytest.mark.timeout(600)
def test_a_training_that_is_cut_interrupted_and_killed_is_that_of_one_process_to_the_bit(place, whole):
    job = place.job("cut, interrupted and killed", min_checkpoint_period={"batches": 4})
    cut = in_a_new_process(job, until=2 * STEPS)  # between epochs
    assert (cut.reason, cut.step) == ("completed", 2 * STEPS)
    # The first interrupt pauses with a checkpoint, within the third epoch.
    paused = in_a_new_process(job, cut.last, INTERRUPT_AT="15", DRIVER=str(os.getpid()))
    assert (paused.reason, paused.step) == ("paused", 15)
    # Killed within the fourth epoch; the last checkpoint is that of step 20, in the same epoch.
    killed, attempt = place.folder / "killed once", place.folder / "attempt"
    env = {"KILL_AT": "22", "KILL_ONCE": str(killed), "ATTEMPT": str(attempt)}
    outcome = in_a_new_process(job, paused.last, restarts=1, **env)
    assert killed.exists()
    assert attempt.read_text() == "1"  # what hvd.attempt() returned after the restart
    assert (outcome.reason, outcome.step, outcome.epochs) == ("completed", EPOCHS * STEPS, EPOCHS)
    assert history(job) == whole.history
    assert outcome.metrics == whole.outcome.metrics
    assert_equal_to_the_bit(open_checkpoint(outcome.last), whole.last)


@pytest.mark.long
@pytest.mark.horovod
def test_ranks_that_pause_and_later_fail_are_those_of_one_training_to_the_bit(place):
    job = place.job("three ranks")
    uninterrupted = in_a_new_process(job, ranks=3)
    cut = place.job("three ranks, cut", min_checkpoint_period={"batches": 4})
    paused = in_a_new_process(cut, ranks=3, INTERRUPT_AT=str(STEPS + 3), DRIVER=str(os.getpid()))
    assert paused.reason == "paused"
    assert STEPS + 3 <= paused.step <= 2 * STEPS  # ranks agree every half second, and at the end of an epoch
    assert_averaged(open_checkpoint(paused.last))
    once = place.folder / "one of three killed"
    outcome = in_a_new_process(cut, paused.last, ranks=3, restarts=1, KILL_AT="22", KILL_ONCE=str(once))
    assert once.exists()
    assert history(cut) == history(job)
    assert_equal_to_the_bit(open_checkpoint(outcome.last), open_checkpoint(uninterrupted.last))


@pytest.mark.long
@pytest.mark.horovod
@pytest.mark.parametrize("swap", ["validations", "epochs"])
def test_ranks_that_swap_averages_and_pause_are_those_of_one_training_to_the_bit(place, swap):
    job, cut = place.job(f"swapped for {swap}"), place.job(f"swapped for {swap}, cut")
    uninterrupted = in_a_new_process(job, ranks=2, SWAP=swap)
    paused = in_a_new_process(cut, ranks=2, until=STEPS + 3, SWAP=swap)
    outcome = in_a_new_process(cut, paused.last, ranks=2, SWAP=swap)
    assert history(cut)[-1] == history(job)[-1]
    last = open_checkpoint(outcome.last)
    assert_equal_to_the_bit(last, open_checkpoint(uninterrupted.last))
    # 21 rows: eleven of one rank, ten of the other.
    rows = job.validation_feed.as_dataset(21, epochs=1, image_size=job.validation_feed.stored_size)
    measured = last.load_model(compile=True).evaluate(rows, verbose=0, return_dict=True)
    assert measured["loss"] == pytest.approx(last.metadata["metrics"]["val_loss"], rel=1e-4)


def assert_averaged(checkpoint: Checkpoint) -> None:
    """Checks that the model alone has the statistics of all ranks, and each rank its own to go on with."""
    ranks = TrainingState.of(checkpoint).ranks
    own = [of_rank(ranks, rank).arrays.get("statistic/0") for rank in range(len(ranks))]
    if own[0] is None:  # at the end of an epoch they are the same
        return
    assert not np.array_equal(own[0], own[1])
    (norm,) = (layer for layer in checkpoint.load_model().layers if layer.name.startswith("batch_norm"))
    np.testing.assert_allclose(norm.moving_mean.numpy(), np.mean(own, axis=0), rtol=1e-5)


@pytest.mark.long
@pytest.mark.horovod
@pytest.mark.spark
def test_tasks_of_a_barrier_stage_that_pause_and_fail_are_two_ranks_of_one_machine_to_the_bit(spark, place):
    local = place.job("two local ranks")
    uninterrupted = in_a_new_process(local, ranks=2)
    cut = place.job("two tasks, cut", min_checkpoint_period={"batches": 4})
    paused = in_a_new_process(cut, ranks=2, spark=spark, until=STEPS + 3)
    once = place.folder / "a task's rank was killed"
    outcome = in_a_new_process(cut, paused.last, ranks=2, restarts=1, spark=spark, KILL_AT="22", KILL_ONCE=str(once))
    assert once.exists()
    assert history(cut) == history(local)
    assert_equal_to_the_bit(open_checkpoint(outcome.last), open_checkpoint(uninterrupted.last))


@pytest.mark.tensorflow
def test_a_checkpoint_of_another_model_is_refused(place, whole):
    changed = place.job("another model")
    other = place.folder / "other.py"
    other.write_text(textwrap.dedent(NOISY).replace("Conv2D(4", "Conv2D(5"))
    outcome = train_segment(
        replace(changed, entrypoint=EntryPoint.parse(f"{other}:Noisy")), start=Checkpoint(whole.last.path, "", {})
    )
    assert outcome.failure is not None
    assert outcome.failure[0] == "CheckpointError"
    assert "of another model than the Trial builds now" in outcome.failure[1]


@pytest.mark.tensorflow
def test_a_checkpoint_that_was_changed_is_refused(place, whole):
    copy = place.folder / "changed"
    shutil.copytree(whole.last.path, copy)
    (copy / "state.json").write_text((copy / "state.json").read_text().replace('"step":24', '"step":23'))
    outcome = train_segment(place.job("changed checkpoint"), start=Checkpoint(copy, "", {}))
    assert outcome.failure is not None
    assert "it was changed after it was written" in outcome.failure[1]
