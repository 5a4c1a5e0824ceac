"""What every job shares: flags in, lines for people, one JSON line out, exit codes 0 done, 1 failed, 2 usage."""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import math
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from lakelens.error_reports import class_of
from lakelens.errors import InvalidArgumentError, LakelensError, RankFailedError, UsageError
from lakelens.extras import missing_dependency, require
from lakelens.job_keys import Job
from lakelens.jobs.interrupts import Interrupts, Terminated
from lakelens.jobs.next_steps import closing_lines
from lakelens.jobs.task_values import set_task_values
from lakelens.locations import is_table_name
from lakelens.options import near_miss, suggestion
from lakelens.spark.jvm import COMMAND_TAG, VERBOSE_VARIABLE, is_verbose
from lakelens.user_frames import user_traceback

if TYPE_CHECKING:
    from lakelens.training.configuration.experiment import ExperimentConfig

EXIT_DONE, EXIT_FAILED, EXIT_USAGE = 0, 1, 2
# Flags of other launchers and of earlier versions, and what this command line calls them.
_OTHER_WORDS = {
    **dict.fromkeys(("-np", "--np", "--num-proc", "--num-workers", "--gpus"), "--slots-per-trial"),
    **dict.fromkeys(("--stream", "--checkpoint", "--start", "--trigger-s"), "--watch"),
}
# What `lakelens models` leaves to MLflow, and how it is done there.
_IN_MLFLOW = {
    "list": """MlflowClient().search_model_versions("name = 'NAME'"), or mlflow ui""",
    "register": "mlflow.register_model('runs:/RUN/model', 'NAME'), or lakelens models promote runs:/RUN NAME",
    "compare": "mlflow ui shows two runs next to each other; mlflow.search_runs() has their parameters and metrics",
}
EXAMPLES_HEADING = "examples:\n"

Run = Callable[[argparse.Namespace], dict[str, Any]]


class JobParser(argparse.ArgumentParser):
    """A parser for which wrong flags are an error like any other: words on stderr, a JSON object on stdout, 2."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": JobHelp, **options})

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parses; what a subcommand does not know is its own error, and not that of the parser above it."""
        known, others = super().parse_known_args(args, namespace)
        if others:
            self.error(f"unrecognized arguments: {' '.join(others)}{self._near_flag(others[0])}")
        return known, others

    def _near_flag(self, given: str) -> str:
        flag = given.partition("=")[0]
        if _OTHER_WORDS.get(flag) in self._option_string_actions:
            return f" (did you mean {_OTHER_WORDS[flag]!r}?)"
        return near_miss(flag, self._option_string_actions) if flag.startswith("-") else ""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        if value in _IN_MLFLOW and self.prog.endswith(" models"):
            raise argparse.ArgumentError(action, f"{value!r} is in MLflow: {_IN_MLFLOW[value]}")
        is_experiment = str(value).endswith((".yaml", ".yml")) and "run" in action.choices
        near = f"did you mean 'run {value}'?" if is_experiment else suggestion(value, action.choices)
        raise argparse.ArgumentError(action, f"invalid choice: {value!r}; {near}")

    def error(self, message: str) -> NoReturn:
        """Ends the process."""
        print(f"{self.prog}: error: {message}", file=sys.stderr)
        words = [str(one.metavar or one.dest.upper()) for one in self._positionals._group_actions]
        print(f"usage: {' '.join([self.prog, *words])} [options] (see {self.prog} --help)", file=sys.stderr)
        print_json({"error": "UsageError", "message": f"{self.prog}: {message}"})
        sys.exit(EXIT_USAGE)


class JobHelp(argparse.ArgumentDefaultsHelpFormatter):
    """Help that names the default of those flags that have one."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(EXAMPLES_HEADING) else super()._fill_text(text, width, indent)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False or action.default == []:
            return action.help
        return super()._get_help_string(action)


def run_command(parse: Callable[[], tuple[Run, argparse.Namespace]], *, ends_process: bool = False) -> int:
    """Runs a job, prints its result as the last stdout line, and turns errors and signals into exit codes."""
    # Errors of lakelens are one message on stderr; anything else is a traceback of the user's code, or a whole one
    # where that has no part in it: a defect, or the cluster's. The last stdout line is always a JSON object, for
    # callers to parse.
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A class or file may have a name that the terminal's encoding lacks.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with Interrupts() as interrupts:
            code = _executed(parse, interrupts)
            if ends_process:
                interrupts.leave()
            return code
    except BrokenPipeError:
        if not _stdout_is_gone():
            raise
        # The interpreter flushes stdout once more as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _executed(parse: Callable[[], tuple[Run, argparse.Namespace]], interrupts: Interrupts) -> int:
    report = report_result
    try:
        run, args = parse()
        report = partial(report_result, result_file=getattr(args, "result_file", None))
        _set_verbosity(getattr(args, "verbose", False))
        with _silence() if getattr(args, "quiet", False) else contextlib.nullcontext():
            result = run(args)
        interrupts.hold()
    except BaseException as error:
        interrupts.hold()
        if interrupts.number is not None or isinstance(error, KeyboardInterrupt):
            return _interrupted(error, interrupts, report)
        if isinstance(error, LakelensError):
            return _failed(error, EXIT_USAGE if _is_usage(error) else EXIT_FAILED, report)
        if not isinstance(error, Exception) or (isinstance(error, BrokenPipeError) and _stdout_is_gone()):
            raise
        missing = missing_dependency(error, "this command") if isinstance(error, ImportError) else None
        if missing is not None:
            return _failed(missing, EXIT_USAGE, report)
        if is_verbose():
            return _failed(error, EXIT_FAILED, report, shown="".join(traceback.format_exception(error)))
        return _failed(error, EXIT_FAILED, report, shown=user_traceback(error, error.__traceback__))
    if not getattr(args, "quiet", False) and sys.stderr is not None and sys.stderr.isatty():
        for line in closing_lines(args, result):
            print(line, file=sys.stderr)
    exit_code = int(result.pop("exit_code", EXIT_DONE))
    try:
        report(result)
    except BrokenPipeError:
        raise
    except (LakelensError, OSError) as error:  # the work is done, but who waits for the file does not hear of it
        return _failed(error, EXIT_FAILED, print_json)
    return exit_code if interrupts.number is None else 128 + interrupts.number


def _is_usage(error: LakelensError) -> bool:
    """Whether trying again cannot help: also for what a rank has raised."""
    kind = class_of(error.kind or "") if isinstance(error, RankFailedError) else None
    return issubclass(kind or type(error), UsageError)


def _interrupted(error: BaseException, interrupts: Interrupts, report: Callable[[dict[str, Any]], None]) -> int:
    """Says in a line that a signal has ended the command, whatever error it has led to."""
    named: int = getattr(error, "signal_number", signal.SIGINT)
    number = signal.Signals(interrupts.number or named)
    if not isinstance(error, KeyboardInterrupt):
        error = Terminated() if number == signal.SIGTERM else KeyboardInterrupt()
    interrupts.say(str(error) or "interrupted")
    report({"error": type(error).__name__, "message": str(error) or f"interrupted by {number.name}"})
    return 128 + number


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Drops what Python prints; errors are printed after it."""
    with Path(os.devnull).open("w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
        yield


def _set_verbosity(verbose: bool) -> None:
    """Keeps TensorFlow's startup messages off stderr, or says everything if asked to; ranks inherit it."""
    if verbose:
        os.environ[VERBOSE_VARIABLE] = "1"
    elif not is_verbose():
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def _stdout_is_gone() -> bool:
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):  # a notebook's stdout has none
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def print_json(value: dict[str, Any]) -> None:
    """Prints one JSON object as a line of stdout, all before it flushed; NaN, for which JSON has no word, is null."""
    if sys.stderr is not None:  # as after 2>&-
        sys.stderr.flush()
    print(json.dumps(_of_json(value), default=str, allow_nan=False), flush=True)


def _of_json(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _of_json(item) for key, item in value.items()}
    return [_of_json(item) for item in value] if isinstance(value, (list, tuple)) else value


def _failed(
    error: Exception, exit_code: int, report: Callable[[dict[str, Any]], None], shown: str | None = None
) -> int:
    """Prints an error once for people and once as JSON, there without the frames and lines of a rank."""
    print(f"error: {error}" if shown is None else shown.rstrip(), file=sys.stderr)
    told = {
        "error": type(error).__name__,
        "message": error.summary if isinstance(error, RankFailedError) else str(error),
    }
    try:
        report(told)
    except BrokenPipeError:
        raise
    except (LakelensError, OSError) as unwritten:
        print(f"error: the result file was not written: {unwritten}", file=sys.stderr)
        print_json(told)
    return exit_code


def report_result(result: dict[str, Any], result_file: str | None = None) -> None:
    """Hands a result on: into a file, to the tasks of a Databricks job that come after, and as the last stdout line."""
    if result_file is not None:
        from lakelens.locations import absolute_path
        from lakelens.stores.data_files import local_form, write_bytes

        place = absolute_path(result_file)
        path = local_form(place)
        if path is not None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(_of_json(result), default=str, allow_nan=False)
        write_bytes(place, f"{text}\n".encode(), None)
    set_task_values(_of_json(result))
    print_json(result)


def add_action(actions: Any, name: str, text: str, run: Run, more: str = "") -> argparse.ArgumentParser:
    """Adds an action of a command, such as `pause` of `lakelens runs`."""
    description = f"{text[0].upper()}{text[1:]}. {more}"
    action: argparse.ArgumentParser = actions.add_parser(name, help=text, description=description)
    action.set_defaults(run=run)
    return action


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """Adds the argument that names a model."""
    forms = "runs:/<id>, models:/<name>@<alias>, experiment:<id>[?metric=<metric>], search:<id> or a checkpoint folder"
    parser.add_argument("model", help=forms)


def add_table_argument(parser: argparse.ArgumentParser) -> None:
    """Adds the argument that names an image table, with its version."""
    parser.add_argument("table", metavar="TABLE[@VERSION]", help="image table: path, URI or catalog.schema.table")


def add_tracking_argument(parser: argparse._ActionsContainer, default: str | None = None) -> None:
    """Adds the flag that names the MLflow store."""
    parser.add_argument("--tracking-uri", default=default, help="MLflow tracking URI; default: MLFLOW_TRACKING_URI")


def add_job_arguments(parser: argparse.ArgumentParser, *, follows: bool = True) -> None:
    """Adds the flags by which a scheduler's retry finds its job, and follows a call at work or shares the work."""
    group = parser.add_argument_group("job")
    otherwise = "follows it while it runs, and resumes it if it was interrupted or has failed"
    group.add_argument(
        "--job",
        metavar="KEY",
        help="such as the id of a scheduler's task: a repeated call with it returns the result of the first one, "
        + (otherwise if follows else "and does what that has not finished"),
    )
    takeover = "with --job: end a process that works on it first" if follows else "with --job: for --from-start"
    group.add_argument("--takeover", action="store_true", help=takeover)
    group.add_argument("--from-start", action="store_true", help="with --takeover: start over instead of resuming")


def job_of(args: argparse.Namespace) -> Job | None:
    """Reads the flags of `add_job_arguments`."""
    if args.job is not None:
        return Job(args.job, args.takeover, args.from_start)
    if args.takeover or args.from_start:
        raise InvalidArgumentError("--takeover and --from-start are about the job of a key: add --job KEY")
    return None


def add_set_argument(parser: argparse._ActionsContainer) -> None:
    """Adds the flag that changes a key of the experiment file."""
    meaning = "a key of the experiment file, as a.b=VALUE (repeatable)"
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=meaning)


def add_session_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that choose a Spark session; spark-submit's own settings win over the defaults."""
    group = parser.add_argument_group("Spark")
    group.add_argument("--master", help="Spark master URL; default: spark-submit's, else local[*]")
    group.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a Spark setting (repeatable)")


def session_of(args: argparse.Namespace, app_name: str, *modules: str) -> Callable[[], Any]:
    """Checks the flags of `add_session_arguments`; gives what opens the session, for when all else is checked too."""
    from lakelens.spark.session import check_settings

    settings = key_values(args.conf, "--conf")
    check_settings(settings)
    python = settings.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable
    if python == sys.executable and sees_the_files_of_executors(args):
        require(app_name, *modules)
    return functools.cache(partial(_open_session, args.master, app_name, settings))


def needs_spark(config: ExperimentConfig) -> bool:
    """Returns whether an experiment needs a session: its ranks run on executors, or the catalog names its table."""
    return config.resources.strategy == "horovod_cluster" or is_table_name(config.data.table)


def _open_session(master: str | None, app_name: str, settings: dict[str, str]) -> Any:
    from lakelens.spark import port
    from lakelens.spark.session import spark_session

    print(f"{app_name}: starting Spark", file=sys.stderr, flush=True)
    session = spark_session(master, app_name=app_name, conf=settings)
    if port.is_local(session):
        port.set_log_level(session, "ERROR")
    port.tag_jobs(session, COMMAND_TAG)
    return session


def sees_the_files_of_executors(args: argparse.Namespace) -> bool:
    """Returns whether Spark is going to run in this process's own JVM, and so on this machine's files."""
    master = key_values(args.conf, "--conf").get("spark.master", args.master) or "local"
    return "PYSPARK_GATEWAY_PORT" not in os.environ and master.startswith("local")


def key_values(pairs: Sequence[str], flag: str) -> dict[str, str]:
    """Splits `KEY=VALUE` flags."""
    result: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise InvalidArgumentError(f"{flag} {pair!r} is not KEY=VALUE")
        result[key] = value
    return result
