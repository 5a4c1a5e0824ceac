"""The training loop of a rank: counts steps, asks the driver, obeys, writes checkpoints. It knows no framework."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ...errors import CheckpointError
from ...tracking.run_writer import RecordFile, RunRecord
from ..checkpoints.checkpoint import AVERAGED, Checkpoint, list_checkpoints, remove_checkpoint
from ..rank.process_context import log_to_driver
from .backend import PreparedRank
from .checks import require_finite_losses
from .decisions import Answer, Progress, Reason
from .evaluation import validate
from .report import Pace, Pulse, Report, described
from .training_state import RankState, TrainingState, gather
from .verdicts import Agreement, Verdicts, Wish


class TrainingLoop:
    """Trains a prepared rank step by step; all ranks act alike after each step."""

    def __init__(
        self,
        prepared: PreparedRank,
        state: TrainingState | None = None,
        checkpoint: Checkpoint | None = None,
        until: int | None = None,
    ) -> None:
        self.prepared, self._state = prepared, state
        self._world, self._rank, self._job = prepared.world, prepared.world.rank, prepared.job
        self._schedule = schedule = prepared.job.schedule
        self._until = min(until or schedule.length, schedule.length)
        self.step = state.step if state is not None else 0
        self.last = checkpoint  # That of `step`, on rank 0
        self._verdicts = Verdicts(prepared, state.progress if state is not None else Progress())
        self._agreement = Agreement(self._world, self.step)
        self._report: Report | None = None
        self._pace = Pace()
        self._pulse = Pulse() if self._job.reports_progress and self._rank == 0 else None
        self._backend = prepared.backend

    @property
    def progress(self) -> Progress:
        """The trial's progress."""
        return self._verdicts.progress

    @property
    def epochs(self) -> int:
        """Trained epochs; one in progress counts."""
        return -(-self.step // self._schedule.steps_per_epoch)

    def best_checkpoint(self) -> Checkpoint | None:
        """Returns the checkpoint of the best validation, on rank 0; None if it is not kept."""
        kept = list_checkpoints(self._job.folder)
        found = [each for each in kept if each.metadata.get("step") == self.progress.best_step]
        metric, best = self._job.config.goal.metric, self.progress.best
        # A training that ends with averages has two of its last step.
        return next((each for each in found if each.metadata["metrics"].get(metric) == best), None)

    def train(self) -> Reason:
        """Trains; rank 0 writes checkpoints and records."""
        reason: Reason | None = None
        if self._state is not None and self._state.stopped:
            reason = "stopped"
        elif self.step >= self._until:
            reason = "completed"
        self._begin()
        try:
            if self._state is None and self._job.config.perform_initial_validation:
                self._validate_first()
            while reason is None:
                reason = self._train_step()
        finally:
            if self._report is not None:
                self._report.close()
        if reason != "paused":
            has_new_weights = self._backend.finalize()
            if has_new_weights and (reason == "stopped" or self.step == self._schedule.length):
                self._measure_final(stopped=reason == "stopped")
            stopping = self._job.config.early_stopping
            if stopping is not None and stopping.restore_best_weights:
                self._restore_best()
        self._backend.end()
        return reason

    def _validate_first(self) -> None:
        """Validates before the first step; its metrics can be the best."""
        metrics = validate(self.prepared, self.step, in_epoch=False)
        if not metrics:
            return
        if self._report is not None:
            self._report.add(0, metrics)
        if self._job.config.goal.metric in metrics and self._verdicts.validated(0, 0, metrics).checkpoint:
            self._write(metrics, stopped=False)

    def _measure_final(self, *, stopped: bool) -> None:
        """Measures and writes weights that the optimizer has averaged, which may be the best."""
        metrics = validate(self.prepared, self.step, in_epoch=False)
        if self._verdicts.measured_again(self.step, self.epochs, metrics) and self._rank == 0:
            log_to_driver(f"the optimizer's averages are better than the weights in training: {described(metrics)}")
        if self.progress.best is not None:
            self._write(metrics, stopped=stopped, suffix=AVERAGED)

    def _restore_best(self) -> None:
        """Restores the weights of the best validation on every rank; checkpoints stay unchanged."""
        if self.progress.best is None or self.progress.best_step == self.step:
            return
        path = None
        if self._rank == 0:
            best = self.best_checkpoint()
            if best is None:
                raise CheckpointError(
                    f"{self._job.folder} has no complete checkpoint of step {self.progress.best_step}, the best, whose "
                    "weights early_stopping.restore_best_weights restores"
                )
            path = best.model_path
            log_to_driver(f"the model has the weights of its best validation again, after step {best.metadata['step']}")
        self._backend.load(path)

    def _begin(self) -> None:
        if self._rank == 0:
            records = RecordFile(self._job.folder)
            if not records.read():
                given = self.prepared.context.hyperparameters.items()
                records.add(RunRecord(params={f"hyperparameters.{name}": value for name, value in given}))
            self._report = Report(records, self._schedule, self._job, self.step)
        self._backend.begin(self._pace)
        self._pace.begin()

    def _train_step(self) -> Reason | None:
        if self.step % self._schedule.steps_per_epoch == 0:
            self._backend.begin_epoch(self.step)
            if self._report is not None:
                self._report.begin()
            self._pace.begin()
        logs = self._backend.train_step(self.step)
        self.step += 1
        if self._pulse is not None:
            self._pulse.reached(self.step)
        return self._after_step(logs)

    def _after_step(self, logs: Mapping[str, Any]) -> Reason | None:
        """Validates and writes checkpoints as due after a step; returns why the segment ends, or None."""
        step, schedule = self.step, self._schedule
        ends, validates = schedule.ends_epoch(step), schedule.validates(step)
        metrics: dict[str, float] = {}
        answer: Answer | None = None
        if ends or validates:
            metrics = self._measured(logs, validates)
            if self._report is not None:
                self._report.add(step, metrics)
            require_finite_losses(metrics, step, schedule.epoch(step - 1) + 1)
            if validates:
                answer = self._verdicts.validated(step, self.epochs, metrics)
            if ends:
                self._backend.end_epoch(step, metrics)
        reason = self._reason(answer, boundary=ends or validates)
        worth_keeping = reason == "paused" or (reason is not None and self.progress.best is not None)
        if worth_keeping or schedule.writes(step) or (answer is not None and answer.checkpoint):
            self._write(metrics if validates else {}, stopped=reason == "stopped")
        if ends or validates:
            self._pace.begin()
        return reason

    def _reason(self, answer: Answer | None, *, boundary: bool) -> Reason | None:
        wish = Wish(self._verdicts.wants_pause(), self._backend.stop_requested)
        alone = self._world.size == 1 and (wish.pause or wish.stop)
        if boundary or alone or self._agreement.due(self.step):
            wish = self._agreement.reached(self.step, wish)
        else:
            wish = Wish(False, False)
        if self.step >= self._until:
            return "completed"
        action = answer.action if answer is not None else "continue"
        if wish.stop or action == "stop":
            return "stopped"
        return "paused" if wish.pause or action == "pause" else None

    def _measured(self, logs: Mapping[str, Any], validates: bool) -> dict[str, float]:
        """Measures the model on all ranks; afterwards all ranks have the same statistics."""
        steps = (self.step - 1) % self._schedule.steps_per_epoch + 1
        metrics = self._backend.measure(logs, steps * self._job.config.global_batch_size)
        times = self._world.allgather_object(self._pace.ended(), name="lakelens.pace")
        if self._report is not None:
            self._report.trained(self.step, times)
        self._backend.average_statistics()
        return metrics | validate(self.prepared, self.step) if validates else metrics

    def _write(self, metrics: Mapping[str, float], *, stopped: bool, suffix: str = "") -> None:
        """Writes a checkpoint of this step on rank 0, with the state of every rank."""
        began = time.perf_counter()
        inside = not self._schedule.ends_epoch(self.step)
        own = self._backend.capture(inside=inside)
        ranks = gather(own, self._world)
        if inside:  # the saved model has the statistics of all ranks; each rank continues with its own
            self._backend.average_statistics()
        if self._rank == 0:
            self._save(metrics, ranks, stopped=stopped, inside=inside, suffix=suffix)
        self._backend.restore_running(own)
        self._pace.left_out(time.perf_counter() - began)

    def _save(
        self, metrics: Mapping[str, float], ranks: list[RankState], *, stopped: bool, inside: bool, suffix: str
    ) -> None:
        job, step = self._job, self.step
        state = TrainingState(
            step=step,
            epoch=self._schedule.epoch(step),
            steps_per_epoch=self._schedule.steps_per_epoch,
            seed=job.config.reproducibility.experiment_seed,
            position=job.training_feed.position(step, job.config.global_batch_size),
            progress=self.progress,
            ranks=ranks,
            stopped=stopped,
            replicas=job.replicas,
        )
        written = self._backend.save(
            self.prepared.metadata(step, metrics),
            state.as_json(),
            state.arrays(),
            (f"step-{step:08d}" if inside else f"epoch-{state.epoch:04d}") + suffix,
        )
        if not suffix:  # a training continues from the weights in training, not from averages
            self.last = written
        for name in self._verdicts.wrote(written.name, step, metrics):
            remove_checkpoint(Checkpoint(job.folder / name, "", {}))
