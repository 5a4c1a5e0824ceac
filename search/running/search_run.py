"""Runs the trials of a search on free slots, until it is finished, paused or given up."""

from __future__ import annotations

import signal
import time
from typing import Literal

from ...errors import NotEnoughSlotsError, SearchFailedError
from ...log.data_files import require_files
from ...pausing import pausing
from ...progress import ProgressBar, ProgressLines
from ...training.experiment.experiment_plan import ExperimentPlan
from ..create import preview
from ..journal import ENDED, PAUSED, RUNNING, WAITING, TrialState
from ..settings import searcher_section
from .places import Place, Share
from .slot_process import SlotProcess
from .state import SearchState
from .trial_runs import TrialRuns

_POLL_S = 0.25
# Invalid draws are replaced; without a limit a space without valid draws would never end.
_MOST_INVALID = 100
_MOST_SHORTAGES = 3
_END_S = 30.0


class SearchRun:
    """A running search."""

    def __init__(
        self,
        plan: ExperimentPlan,
        state: SearchState,
        runs: TrialRuns,
        share: Share,
        place: Place,
        display: ProgressBar | ProgressLines,
    ) -> None:
        self.plan, self.state, self.runs = plan, state, runs
        self.error: BaseException | None = None
        self.signal_number: int = signal.SIGINT
        # Why it ends before it is finished: an interrupt has paused it, or it was given up
        self.ending: Literal["paused", "given up"] | None = None
        self._share, self._place, self._display = share, place, display
        self._processes: list[SlotProcess] = []
        self._assigned: set[int] = set()
        self._known_ended: set[int] = {trial.number for trial in state.trials if trial.state in ENDED}
        self._held_up = False
        self._shortages = 0
        lengths = preview(searcher_section(plan.config), plan.config.hyperparameters)
        self._whole = sum(length * trials for length, trials in lengths.items())

    def run(self) -> None:
        """Runs until the search is finished, or was interrupted and its trials have paused."""
        try:
            with pausing(self._interrupt, "pausing after a checkpoint"):
                while not self._over():
                    self._step()
        except BaseException:
            self._end_processes()
            raise
        if self.error is not None:
            raise self.error

    # --- the main thread ------------------------------------------------------------------------------------------

    def _over(self) -> bool:
        with self.state.changed:
            if self._processes:
                return False
            return self.state.finished or self.ending is not None or self.error is not None

    def _step(self) -> None:
        if self._stops():
            self._tell_pause()
        else:
            self._start_processes()
        self._close_ended()
        with self.state.changed:
            self._show()
            self.state.changed.wait(_POLL_S)

    def _show(self) -> None:
        """Shows the lengths of all trials together, of what the search will train if no trial fails."""
        with self.state.changed:
            state, best = self.state, self.state.best()
            counts = {"done": state.count(*ENDED), **{name: state.count(name) for name in (RUNNING, PAUSED, WAITING)}}
            place = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
            trained = round(sum(trial.length for trial in state.trials), 2)
            if best is not None and best.best is not None:
                self._display.measured(self.plan.config.goal.metric, best.best.metric)
            self._display.reached(place, min(trained, self._whole), self._whole)

    def _stops(self) -> bool:
        return self.ending is not None or self._held_up or self.error is not None

    def _ends(self, process: SlotProcess) -> bool:
        """Whether a process gets no more trials: its ranks, once told to pause, would pause each of them at once."""
        return self._stops() or bool(process.controls.since(0))

    def _interrupt(self, signal_number: int) -> None:
        self.signal_number = signal_number
        self.ending = "paused"  # in a signal handler, where no lock may be waited for

    def _tell_pause(self) -> None:
        self._share.ask(False)
        with self.state.changed:
            processes = list(self._processes)
        for process in processes:
            if not process.controls.since(0):
                process.controls.tell({"pause": True})

    def _start_processes(self) -> None:
        """Starts a process for each waiting trial while slots are free."""
        while not self._stops():  # a process that has just ended may have ended the search
            with self.state.changed:
                idle = sum(not process.busy for process in self._processes)
                waits = self.state.count(WAITING) - len(self._assigned) > idle
                for trial in self.state.trials:
                    if trial.state == WAITING:
                        self.runs.prepare(trial)
            self._share.ask(waits)
            slots = self._share.take() if waits else None
            if slots is None:
                return
            process = SlotProcess(self, slots, self._place.environment(slots), self._place.spark)
            with self.state.changed:
                self._processes.append(process)
            process.start()

    def _close_ended(self) -> None:
        """Ends the runs of trials that were given up while they were paused."""
        with self.state.changed:
            ended = [
                trial for trial in self.state.trials if trial.state in ENDED and trial.number not in self._known_ended
            ]
            self._known_ended.update(trial.number for trial in ended)
        for trial in ended:
            self.runs.mark(trial)
        if ended:
            self.runs.prune(self.state.trials)
        if self.state.invalid_in_a_row >= _MOST_INVALID:
            self.abort(
                SearchFailedError(
                    f"the last {_MOST_INVALID} trials had invalid hyperparameters; narrow the space. The last error: "
                    f"{next((trial.error for trial in reversed(self.state.trials) if trial.error), None)}"
                )
            )

    def obey(self, asked: str) -> None:
        """Carries out what another process asks of the search."""
        with self.state.changed:
            self.say(f"{asked} was requested by another process")
            if asked == "stop":
                self.ending = "given up"
            elif asked == "leave":
                self.ending = self.ending or "paused"
            elif asked in ("pause", "resume"):
                self._held_up = asked == "pause"
            self.state.changed.notify_all()

    def _end_processes(self) -> None:
        with self.state.changed:
            processes = list(self._processes)
        for process in processes:
            process.controls.end()
        deadline = time.monotonic() + _END_S
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))

    # --- called by the processes' threads -------------------------------------------------------------------------

    def assign(self, process: SlotProcess) -> TrialState | None:
        """Chooses the next trial of a process; None if none waits, or another search gets the slots."""
        with self.state.changed:
            process.busy = False
            if self._ends(process) or (process.trained and not self._share.may_keep()):
                return None
            trial = self.state.next_trial(besides=self._assigned)
            process.busy = trial is not None
            if trial is not None:
                self._assigned.add(trial.number)
            return trial

    def launched(self, trial: TrialState) -> None:
        """Notes that an assigned trial has begun or failed to begin."""
        with self.state.changed:
            self._assigned.discard(trial.number)

    def joined(self) -> None:
        """Notes that the cluster had slots for a process."""
        with self.state.changed:
            self._shortages = 0

    def may_go_on(self, process: SlotProcess) -> bool:
        """Returns whether a process without a trial may wait for one."""
        with self.state.changed:
            return not self._ends(process) and not self.state.finished and self._share.may_keep()

    def say(self, text: str) -> None:
        """Shows a line."""
        with self.state.changed:
            self._display.say(text)

    def left(self, process: SlotProcess) -> None:
        """Takes the slots of a process that has ended."""
        self._share.give_back(process.slots)
        with self.state.changed:
            self._processes.remove(process)
            self.state.changed.notify_all()

    def short_of_slots(self, error: NotEnoughSlotsError) -> None:
        """Notes that the cluster had no slots; several times in a row end a search that trains nowhere."""
        with self.state.changed:
            trains = any(process.current is not None for process in self._processes)
            self._shortages = 0 if trains else self._shortages + 1
            if self._shortages >= _MOST_SHORTAGES:
                self.abort(error)

    def require_rows(self) -> None:
        """Checks that the rows are still there, so that no trial fails for a cause that every other one has too."""
        data = self.plan.data
        for feed in filter(None, (data.training, data.validation)):
            require_files(feed.plan.snapshot)

    def abort(self, error: BaseException) -> None:
        """Ends the search with an error, once its trials have paused."""
        with self.state.changed:
            self.error = self.error or error
            self.state.changed.notify_all()
