"""Every exception that lakelens raises.

A message names the path or key, the value, the rule that it breaks and the way out.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any


class LakelensError(Exception):
    """Base of every error that lakelens raises; pickles with its attributes.

    Examples:
        >>> try:
        ...     lakelens.ImageTable(None, "nothing").history()
        ... except lakelens.LakelensError as error:
        ...     print(type(error).__name__)
        NotADeltaTableError
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), dict(self.__dict__))


class UsageError(LakelensError):
    """Raised when the same call can only succeed after its input or configuration has changed.

    The command line ends with exit code 2 for these, and with 1 for every other `LakelensError`.
    """


# --- any part -------------------------------------------------------------------------------------------------------


class InvalidArgumentError(UsageError, ValueError):
    """Raised when an argument breaks its rule."""


class RunNotResumableError(InvalidArgumentError):
    """Raised when a run that was to be resumed has finished, is running, or is resumed by another process."""


class UnknownOptionError(InvalidArgumentError, TypeError):
    """Raised when a call gets an unknown keyword; the message names the nearest valid one."""


class ConfigurationError(InvalidArgumentError):
    """Raised when a key of a configuration is unknown, missing or breaks its rule.

    The message gives the key's path in the YAML file, its value, the rule, and the nearest key that exists.
    """


class MissingDependencyError(UsageError, ImportError):
    """Raised when a required package or program is missing or unusable; the message shows how to install it."""


class BuildError(UsageError):
    """Raised when code that lakelens compiles on this machine does not compile, or does not run afterwards."""


class NoSpaceError(LakelensError, OSError):
    """Raised when a disk or a quota is full; the message names the file that could not be written."""


class SessionError(UsageError):
    """Raised when the Spark session cannot do what the call needs (no Delta, another master), or cannot start."""


# --- etl ------------------------------------------------------------------------------------------------------------


class SourceNotFoundError(UsageError, FileNotFoundError):
    """Raised when the folder or file to ingest does not exist or cannot be listed."""


class EmptySourceError(UsageError):
    """Raised when a source has no file in the requested layout."""


class NothingStoredError(LakelensError):
    """Raised when none of the images of a first ingest can be stored; no table is made."""


class UnknownLayoutError(InvalidArgumentError):
    """Raised when the name of a source layout is not one that lakelens reads."""


class AnnotationFileError(UsageError):
    """Raised when a file that annotates a whole source (COCO JSON, manifest) breaks the rules of its layout."""


class ImageError(LakelensError):
    """Raised when bytes cannot become a stored image.

    Attributes:
        reason: One of the closed list of quarantine reasons.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


# --- tables ---------------------------------------------------------------------------------------------------------


class TableError(LakelensError):
    """Base of the errors about a Delta table and its versions."""


class NotADeltaTableError(TableError, UsageError):
    """Raised when there is not a Delta table at a path or name."""


class NotAnImageTableError(TableError, UsageError):
    """Raised when a Delta table lacks the columns or properties that the call needs."""


class VersionNotFoundError(TableError, UsageError):
    """Raised when a table has no such version, timestamp or pin, or no longer the version that a run has read."""


class VersionFilesMissingError(TableError):
    """Raised when a version is in the log, but its data files were removed by VACUUM or deleted manually."""


class VersionUnreadableError(TableError):
    """Raised when the log's entries of a version cannot be read: damaged files, missing rights, a failing disk."""


class StoreError(LakelensError, OSError):
    """Raised when an object store cannot be reached, or refuses a request; the message names the location."""


class DataFileError(TableError):
    """Raised when a data file is not a complete Parquet file, or cannot be read; the message names the file."""


class VersionProtectedError(TableError, UsageError):
    """Raised when a VACUUM would remove files of a version that is pinned or that a run has used."""


class UnsupportedTableFeatureError(TableError, UsageError):
    """Raised when a version uses a Delta feature that reading without Spark would get wrong."""


class ClassNumbersError(TableError, UsageError):
    """Raised when two classes of a table have one number, or one class has two numbers; the message names them."""


class IngestLossError(TableError, UsageError):
    """Raised when an ingest would remove most rows of a table, or all rows of a class; nothing was committed."""


class ConstraintError(TableError, UsageError):
    """Raised when a write breaks a rule of its table: CHECK, NOT NULL, append-only; nothing was committed."""


class TableConflictError(TableError):
    """Raised when another writer changed the table in a way that conflicts with this write."""


class SparkFailedError(TableError):
    """Raised when Spark fails at work on a table; the message has its innermost cause, `__cause__` the whole error."""


class LedgerError(TableError, UsageError):
    """Raised when a table's ledger is damaged, or was written by a later lakelens."""


class QuarantineConflictError(TableError):
    """Raised when an ingest has committed its images, but other writers kept changing the table's quarantine."""


# --- training -------------------------------------------------------------------------------------------------------


class LaunchError(LakelensError):
    """Base of the errors about starting and running the ranks of a job."""


class NotEnoughSlotsError(LaunchError, UsageError):
    """Raised when a job asks for more ranks than the cluster has slots."""


class ClusterConfigurationError(LaunchError, UsageError):
    """Raised when the cluster's settings, or its workers' Python, lakelens or packages, do not allow the job."""


class UnpicklableFunctionError(LaunchError, UsageError):
    """Raised when the training function or one of its arguments cannot be sent to the ranks; the message names it."""


class NotSupportedError(UsageError, NotImplementedError):
    """Raised when code uses a part of Horovod or Petastorm that lakelens lacks; the message names the replacement."""


class RankFailedError(LaunchError):
    """Raised when a rank raises, dies, stops responding or leaves early; all other ranks have been ended.

    Attributes:
        rank: The rank that is to blame.
        host: Where it ran.
        reason: `raised`, `died`, `stopped`, `stalled`, `left_early`, `lost` or `cancelled`.
        exit_code: Of its process; None if a signal ended it or the process was still there.
        signal_name: The signal that ended it, such as `SIGKILL`.
        log: The last lines that it wrote, at most 100.
        traceback: Its whole traceback, if it raised; the message has the user's frames alone.
        summary: One sentence: the rank, and what it did.
        kind: Name of the class that it raised, with its module if it is not Python's own.
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        host: str | None = None,
        reason: str = "died",
        exit_code: int | None = None,
        signal_name: str | None = None,
        log: Sequence[str] = (),
        traceback: str | None = None,
        summary: str | None = None,
        kind: str | None = None,
    ) -> None:
        super().__init__(message)
        self.summary = summary or message
        self.rank = rank
        self.host = host
        self.reason = reason
        self.exit_code = exit_code
        self.signal_name = signal_name
        self.log = list(log)
        self.traceback = traceback
        self.kind = kind


class FeedError(LakelensError):
    """Raised when the rows of a pinned version cannot be delivered exactly as promised."""


class EmptyFeedError(FeedError, UsageError):
    """Raised when a version, or one of its splits, has no row to feed."""


class FeedStalledError(FeedError):
    """Raised when a read does not finish within its time limit: a store that stalls, a disk that hangs."""


class BadRowError(FeedError, UsageError):
    """Raised when the bytes of a row are not an image of the feed's shape; the message names the file and the row."""


class CheckpointError(LakelensError):
    """Raised when a checkpoint lacks a part, does not match its digest, or has content that is refused."""


class CheckpointNotFoundError(CheckpointError, UsageError):
    """Raised when a path has no checkpoint."""


class TrialError(UsageError):
    """Raised when an entry point is not a Trial, or a Trial breaks its contract."""


class MissingMetricError(TrialError):
    """Raised when a validation does not report the deciding metric; the message lists the metrics that it reports."""


class NotFiniteError(TrialError):
    """Raised when a loss or an output of the model is NaN or infinite; names step and metric."""


class NotProbabilitiesError(TrialError):
    """Raised when a model that gives probabilities gives a value outside 0 to 1; names the range of its values."""


class InvalidHyperparameters(TrialError):
    """Raised when a Trial rejects its hyperparameters; a search draws other ones, a training fails."""


class TrackingError(LakelensError):
    """Raised when the MLflow store cannot be reached, or refuses a call."""


class Paused(KeyboardInterrupt):
    """Raised when an interrupted call has ended at a point from which the next call continues.

    Attributes:
        signal_number: The signal that has interrupted it; SIGINT where another process has asked for the pause.
    """

    def __init__(self, message: str = "", *, signal_number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.signal_number = signal_number


class TrainingPaused(Paused):
    """Raised when a training was interrupted and has paused with a checkpoint; a second interrupt ends it at once."""


class TrainingKilled(KeyboardInterrupt):
    """Raised when another process has ended a training (`lakelens runs kill RUN`)."""


# --- search ---------------------------------------------------------------------------------------------------------


class SearchFailedError(LakelensError):
    """Raised when no trial of a search reported a metric; the message has the first trial's error."""


class SearchPaused(TrainingPaused):
    """Raised when a search was interrupted and its trials have paused; the message shows how to resume it."""


class SearcherEventError(LakelensError, ValueError):
    """Raised when an event of a search is impossible: for a trial that does not run, or below the requested length."""


# --- inference ------------------------------------------------------------------------------------------------------


class ModelNotFoundError(UsageError):
    """Raised when a run, alias, experiment or path has no model."""


class PredictionsSchemaError(TableError, UsageError):
    """Raised when a table is not a table of predictions, or its labels and predictions have different class numbers."""


class ModelMismatchError(UsageError):
    """Raised when a model's classes, input or output do not fit the table."""


class ScoringPaused(Paused):
    """Raised when `score` with `watch_s` was interrupted and has committed its part; the next call scores the rest."""


class ScoringFailedError(LakelensError):
    """Raised when the machine or the model fails during scoring, so that no single row is the cause."""


def _rebuild(kind: type[LakelensError], message: str, attributes: dict[str, Any]) -> LakelensError:
    """Unpickles an exception, whatever its constructor takes."""
    error = kind.__new__(kind, message)
    error.__dict__.update(attributes)
    return error
