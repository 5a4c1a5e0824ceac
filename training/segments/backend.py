"""The Backend: what the training loop needs of a framework. Rank, step and decisions are the loop's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from ..checkpoints.checkpoint import Checkpoint
    from ..tasks.task import Counts
    from ..trials.context import TrialContext
    from .job import TrainingJob
    from .pace import Pace
    from .plain_values import Arrays
    from .rank_state import RankState
    from .training_state import TrainingState

    Logs = Mapping[str, Any]


class Backend(Protocol):
    """One rank's Trial, model, optimizer, batches and callbacks. Every rank calls the same methods in the same order.

    It is made without waiting for other ranks.

    Args:
        job: The training job.
        context: The job as the Trial sees it.
        state: Where the training continues; None is its start.
        checkpoint: The checkpoint of that state, which rank 0 reads.

    Attributes:
        name: Its name in the manifests of checkpoints.
        described: On rank 0 the task's description of the model's output.

    Raises:
        TrialError: If the Trial, its model or its hyperparameters do not fit the job.
        CheckpointError: If the model cannot be saved, or the checkpoint is of another model.
    """

    name: ClassVar[str]
    described: Mapping[str, Any]

    def __init__(
        self, job: TrainingJob, context: TrialContext, state: TrainingState | None, checkpoint: Checkpoint | None
    ) -> None: ...

    @staticmethod
    def remember_settings() -> Callable[[], None]:
        """Remembers the framework's settings of this process; the result restores them, as in a fresh process."""

    @property
    def stop_requested(self) -> bool:
        """Whether a callback has requested the end of the training."""

    def begin(self, pace: Pace) -> None:
        """Gives every rank rank 0's weights and optimizer state, restores the state, and begins training after it.

        Args:
            pace: Gets the seconds that it waits for batches.
        """

    def begin_epoch(self, step: int) -> None:
        """Begins an epoch after a step."""

    def train_step(self, step: int) -> Logs:
        """Trains on the batch after a step and returns the running metrics of this rank.

        Raises:
            FeedError: If a row cannot be used, or an epoch has too few batches.
        """

    def end_epoch(self, step: int, metrics: Mapping[str, float]) -> None:
        """Ends the epoch that ends with a step, with the metrics over all ranks."""

    def measure(self, logs: Logs, rows: int) -> dict[str, float]:
        """Returns the training metrics over all ranks, from the logs of this rank's last step and its trained rows."""

    def average_statistics(self) -> None:
        """Averages untrained statistics, such as moving means, over all ranks."""

    def validate(self) -> dict[str, float]:
        """Returns the metrics over the validation rows of all ranks, as `val_...`; empty without such rows."""

    def count(self, described: Mapping[str, Any]) -> Counts:
        """Counts for the task's evaluation, on this rank's validation rows; see `Task.count`."""

    @property
    def picture(self) -> bytes | None:
        """The task's picture of the first rows of the last `count`, on rank 0; None if it has none."""

    def capture(self, *, inside: bool) -> RankState:
        """Takes the state of this rank; `inside` an epoch with running metrics and statistics."""

    def restore_running(self, state: RankState) -> None:
        """Restores the running metrics and statistics of a captured state."""

    def save(self, metadata: Mapping[str, Any], state: Mapping[str, Any], arrays: Arrays, name: str) -> Checkpoint:
        """Writes model and optimizer with a state as a checkpoint of the job's folder."""

    def load(self, path: Path | None) -> None:
        """Gives every rank the weights of a model file, which rank 0 reads; None takes rank 0's weights."""

    def finalize(self) -> None:
        """Gives the model its final weights, such as averages that the optimizer keeps."""

    def end(self) -> None:
        """Ends the training."""


def backend_class() -> type[Backend]:
    """Returns the backend of Trials; imports its framework.

    It does not depend on the Trial: a Trial's module is imported only after the process's devices are set up.
    """
    from .keras.backend import KerasBackend

    return KerasBackend
