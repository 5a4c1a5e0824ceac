"""The contract of each command: what it reads and writes, the keys of its result, what trying it again does."""

from __future__ import annotations

from dataclasses import dataclass, field

from lakelens.jobs.command import EXIT_DONE, EXIT_FAILED, EXIT_USAGE

EXIT_CODES = {
    EXIT_DONE: "done",
    EXIT_FAILED: "failed, and trying again may help; also `doctor` with a broken part, `reproduce` with a difference, "
    "and `experiments pause` or `kill` of a training that has not ended within `--wait-s`",
    EXIT_USAGE: "the input or the configuration has to change first",
    130: "ended by Ctrl-C",
    141: "the reader of stdout has gone",
    143: "ended by SIGTERM",
}


@dataclass(frozen=True)
class Contract:
    """The contract of one command.

    Attributes:
        reads: What it reads.
        writes: What it writes.
        retry: What trying it again does.
        result: Keys of the JSON object on the last line, separated by spaces; those without a value may be absent.
        variants: The same for forms of the command whose result is another one, by their flags.
    """

    reads: str
    writes: str
    retry: str
    result: str
    variants: dict[str, str] = field(default_factory=dict)


_PREVIEW = "searcher trials unit trials_by_length total random_total"
_LOG, _NOTHING = "the table's log", "nothing"
_SAME_ANSWER = "the same answer"
_TRAINED = "run_id experiment_id tracking_uri table version checkpoint digest metrics best_epoch epochs ranks seconds"
_REGISTERED = "model name version aliases digest run_id trained_on created_ms promotions"
_RUN = "run_id name experiment state table version entrypoint metric value started seconds digest failure"
_PLAN = (
    "dry_run entrypoint table version rows classes image_size strategy devices_per_rank ranks where global_batch_size "
    "steps_per_epoch steps validation_period metric row_group_bytes_per_rank image_batch_bytes_per_rank "
    "warnings"
)

CONTRACTS = {
    "etl": Contract(
        "image files",
        "one version of the image table, and its quarantine",
        "a committed batch adds nothing; known files are skipped",
        "table version rows_in stored quarantined skipped changed gone removed ignored reasons repairs new_classes "
        "batch_id committed class_changes near_duplicates ignored_suffixes",
        {
            "--stream": "table version rows_in stored quarantined skipped reasons repairs new_classes batches "
            "class_changes near_duplicates",
            "--dry-run": "table dry_run version rows_in new changed known gone ignored new_classes vanished_classes "
            "files ignored_suffixes",
        },
    ),
    "table history": Contract(_LOG, _NOTHING, _SAME_ANSWER, "table versions"),
    "table counts": Contract("small columns of one version", _NOTHING, _SAME_ANSWER, "table version rows classes"),
    "table diff": Contract(
        "small columns of two versions",
        _NOTHING,
        _SAME_ANSWER,
        "table first second added removed changed content label split",
    ),
    "table changes": Contract("small columns of two versions", _NOTHING, _SAME_ANSWER, "table count changes"),
    "table quarantine": Contract("the quarantine table", _NOTHING, _SAME_ANSWER, "table count reasons files"),
    "table profile": Contract(
        "the images of one version", "a page with PNG files", "writes the same again", "table version page plots"
    ),
    "table pins": Contract("pins and tracked runs", _NOTHING, _SAME_ANSWER, "table pins protected"),
    "table tracked": Contract("pins and tracked runs", _NOTHING, _SAME_ANSWER, "table protected"),
    "table pin": Contract(
        _LOG, "a pin", "ends in the same state; a name of another version is refused", "table pin version"
    ),
    "table unpin": Contract("pins", "removes a pin", "exit code 2: the pin no longer exists", "table unpinned"),
    "table untrack": Contract("tracked runs", "removes their marks", "finds none to remove", "table run versions"),
    "table vacuum": Contract(
        "the table's log, its pins and tracked runs, and its store's list of files",
        "removes data files",
        "removes the remaining files",
        "table files dry_run paths kept unreadable",
    ),
    "table restore": Contract(
        "two versions",
        "one version",
        "commits nothing where the rows are those already",
        "table version restored added removed changed user committed",
    ),
    "table repair": Contract(
        "labels of the table",
        "one version, with `--yes`",
        "finds nothing to correct",
        "table version findings changes labels committed",
    ),
    "table optimize": Contract(
        "small data files",
        "one version with the same rows",
        "commits nothing where nothing is to be gained",
        "table version files_removed files_added committed",
    ),
    "table delete": Contract(
        "rows that meet the condition", "one version without them", "commits nothing", "table version deleted committed"
    ),
    "table rename-class": Contract(
        "rows of the class", "one version", "exit code 2: the old name is gone", "table version old new number rows"
    ),
    "train": Contract(
        "one version of the table, without Spark",
        "an MLflow run with checkpoint and model",
        "trains again, as another run; `--resume RUN_ID` continues the first one",
        _TRAINED,
        {"--dry-run": _PLAN},
    ),
    "preview": Contract(
        "the experiment file",
        _NOTHING,
        _SAME_ANSWER,
        _PREVIEW,
        {"--seconds-per-epoch": f"{_PREVIEW} slot_hours random_slot_hours"},
    ),
    "search": Contract(
        "one version of the table",
        "an MLflow run for the search and one for each trial, and the report",
        "searches again; `--resume PARENT_RUN` continues with the same trials",
        "run_id experiment_id tracking_uri table version best_run best_trial metric value hyperparameters checkpoint "
        "digest trials seconds",
        {"--pause, --continue, --stop": "run_id asked"},
    ),
    "report": Contract(
        "the journal of a search", "report.html, its PNG files and best.yaml", "writes them again", "page best"
    ),
    "score": Contract(
        "a model, one version of the table",
        "rows of the predictions table",
        "rows that were scored are skipped",
        "table predictions version scored skipped errors carried table_version digest model_uri batch_id seconds "
        "commits",
    ),
    "evaluate": Contract(
        "a model, another with `--compare`, and one version of the table",
        "a page with PNG files, `changes.parquet` with `--compare`, and both in the model's run, with metrics",
        "writes the same again; with `--predictions` no model runs",
        "model digest run_id trained_on table version split page changes artifacts rows errors accuracy "
        "balanced_accuracy macro_f1 top_3_accuracy top_5_accuracy ece map50 map50_voc07 map recall50 recall classes "
        "slices compared comparison",
    ),
    "models list": Contract("the registry", _NOTHING, _SAME_ANSWER, "models"),
    "models show": Contract("the registry", _NOTHING, _SAME_ANSWER, "name versions"),
    "models register": Contract("a run", "a registered version", "finds the existing version", _REGISTERED),
    "models alias": Contract("a registered version and its files", "an alias", "ends in the same state", _REGISTERED),
    "models compare": Contract("the runs of two models", _NOTHING, _SAME_ANSWER, "first second params metrics"),
    "models promote": Contract(
        "two models, one version of the table",
        "an alias, and the scores of both on the version",
        "an alias that points to the model stays",
        "model name alias version promoted reason previous metric score previous_score table split artifacts errors",
    ),
    "models has": Contract("the registry", _NOTHING, _SAME_ANSWER, "model found version"),
    "models due": Contract(
        "the registry and the table's log",
        _NOTHING,
        _SAME_ANSWER,
        "due reason table version trained_on new_rows drift drifted_class",
    ),
    "experiments": Contract("the MLflow store", _NOTHING, _SAME_ANSWER, "runs"),
    "experiments show": Contract(
        "the MLflow store", _NOTHING, _SAME_ANSWER, "summary params metrics rows tags artifacts scored"
    ),
    "experiments pause": Contract("a run", "a request in it", "exit code 2: the run is not running any more", _RUN),
    "experiments kill": Contract("a run", "a request in it", "exit code 2: the run is not running any more", _RUN),
    "experiments resume": Contract(
        "the run's record and last checkpoint",
        "the same run, to its end",
        "exit code 2: the run has finished",
        _TRAINED,
    ),
    "reproduce": Contract(
        "a run's record and its version of the table",
        "another MLflow run",
        "trains again, as another run",
        "run_id origin equal differences environment",
    ),
    "trace": Contract(
        "a predictions table, the MLflow store",
        _NOTHING,
        _SAME_ANSWER,
        "predictions path traces",
        {"--run": "run scored found"},
    ),
    "schema": Contract(
        _NOTHING,
        _NOTHING,
        _SAME_ANSWER,
        "$schema $defs additionalProperties description properties required title type",
    ),
    "init": Contract(
        _NOTHING,
        "files of a project; existing files stay",
        "writes missing files",
        "folder dry_run written kept",
    ),
    "doctor": Contract("each part of the environment", _NOTHING, "tries the parts again", "ok lakelens parts"),
    "demo": Contract(
        "scanned digits, or the images of `--images`",
        "tables, runs and pictures in the folder `--out`",
        "makes the folder again",
        "versions runs rows class recall_before recall_after mended_class accuracy_before accuracy_after predictions "
        "version_0_unchanged seconds",
        {"--search": "run_id best_run metric value hyperparameters trials report seconds"},
    ),
}
