"""Rules of precision, aggregation, compression and learning rates, with ranks and with devices of one process."""

from __future__ import annotations

import json
import textwrap
from dataclasses import replace

import pytest
from segment_jobs import NOISY, STEPS, Place, assert_equal_to_the_bit, history, in_a_new_process, place_in

from lakelens.errors import TrialError
from lakelens.training.checkpoints.checkpoint import open_checkpoint
from lakelens.training.configuration.sections import Optimizations
from lakelens.training.segments.job import TrainingJob
from lakelens.training.segments.segment import train_segment
from lakelens.training.trials.entrypoint import EntryPoint

EPOCHS = 3
WATCHED = """
    class Rates(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.rates = []

        def on_train_batch_begin(self, batch, logs=None):
            self.rates.append(float(self.model.optimizer.learning_rate.numpy()))

        def on_train_end(self, logs=None):
            import json
            optimizer = self.model.optimizer
            seen = {"rates": self.rates, "updates": int(optimizer.iterations.numpy())}
            seen["class"] = type(optimizer).__name__
            seen["policy"] = self.model.layers[-1].compute_dtype
            seen["weights"] = str(self.model.layers[-1].kernel.dtype)
            Path(os.environ["WATCHED"]).write_text(json.dumps(seen))

    class Watched(Noisy):
        def keras_callbacks(self):
            noise = [each for each in super().keras_callbacks() if not isinstance(
                each, (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau))]
            return [*noise, *([Rates()] if self.context.rank == 0 else [])]
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Place:
    place = place_in(tmp_path_factory.mktemp("optimizations"))
    (place.folder / "watched.py").write_text(textwrap.dedent(NOISY) + textwrap.dedent(WATCHED))
    return place


def rules_of(*values: object) -> Optimizations:
    names = "mixed_precision aggregation_frequency gradient_compression learning_rate_scaling warmup_epochs"
    return Optimizations.model_validate(dict(zip(names.split(), values, strict=True)))


def job_of(place: Place, name: str, rules: Optimizations, **changes) -> TrainingJob:
    job = place.job(name, epochs=EPOCHS, optimizations=rules.model_dump(), **changes)
    return replace(job, entrypoint=EntryPoint.parse(f"{place.folder / 'watched.py'}:Watched"))


@pytest.mark.horovod
def test_everything_that_is_switched_on_is_said_and_done(place, capfd):
    rules = rules_of("bfloat16", 4, "fp16", "linear", 1.5)
    seen = place.folder / "seen.json"
    job = job_of(place, "all", rules)
    in_a_new_process(job, ranks=2, WATCHED=str(seen))
    found = json.loads(seen.read_text())
    assert (found["class"], found["policy"], found["weights"]) == ("Adam", "bfloat16", "float32")
    assert found["updates"] == EPOCHS * STEPS // 4
    warm_up = 9  # 1.5 epochs of 6 steps
    assert found["rates"][:warm_up] == pytest.approx([0.02 * (step + 1) / warm_up for step in range(warm_up)])
    assert found["rates"][warm_up:] == pytest.approx([0.02] * (EPOCHS * STEPS - warm_up))
    said = capfd.readouterr().out
    assert "mixed_precision: layers compute in bfloat16; weights stay float32" in said
    assert "gradients of 4 steps are averaged before one update; the last 2 steps fill no group" in said
    assert "gradient_compression: float16 gradients between 2 workers" in said
    assert "learning rate 0.02 = 0.01 x 2 (linear, 2 workers), reached after 9 steps of warm-up" in said


@pytest.mark.long
@pytest.mark.horovod
@pytest.mark.parametrize(
    ("ranks", "replicas", "rules"),
    [(2, 1, rules_of("float16", 4, "fp16", "sqrt", 1.5)), (1, 2, rules_of("float16", 1, "fp16", "linear", 1.5))],
    ids=["ranks", "replicas"],
)
def test_a_training_goes_on_exactly_within_a_group_of_steps_and_within_the_warm_up(place, ranks, replicas, rules):
    env = {"ranks": ranks, "WATCHED": "/dev/null"}
    name = f"{ranks} ranks of {replicas}"
    whole, cut = (job_of(place, f"{name} {what}", rules, replicas=replicas) for what in ("whole", "cut"))
    uninterrupted = in_a_new_process(whole, **env)
    paused = in_a_new_process(cut, until=STEPS + 1, **env)
    outcome = in_a_new_process(cut, paused.last, **env)
    assert history(cut) == history(whole)
    assert_equal_to_the_bit(open_checkpoint(outcome.last), open_checkpoint(uninterrupted.last))


@pytest.mark.tensorflow
def test_a_rate_that_follows_a_schedule_is_not_scaled(place):
    scheduled = place.folder / "scheduled.py"
    text = textwrap.dedent(NOISY).replace("Adam(0.01,", "Adam(keras.optimizers.schedules.CosineDecay(0.1, 9),")
    scheduled.write_text(text)
    job = place.job("scheduled", optimizations={"warmup_epochs": 1.0})
    with pytest.raises(TrialError, match=r"warmup_epochs change .* optimizer follows CosineDecay; scale it"):
        train_segment(replace(job, entrypoint=EntryPoint.parse(f"{scheduled}:Noisy"))).raise_failure()
