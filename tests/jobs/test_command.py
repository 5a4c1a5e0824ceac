"""What every job promises: one JSON object as the last stdout line, and an exit code that says what to do next."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from child_processes import run_to_end
from references import commands

from lakelens.errors import InvalidArgumentError, LakelensError, RankFailedError, SessionError, TrainingPaused
from lakelens.jobs import command, interrupts
from lakelens.jobs.cli import build_parser, examples_of, main
from lakelens.jobs.command import Run, key_values, run_command
from lakelens.jobs.etl import fractions
from lakelens.training.configuration.experiment import ExperimentConfig

pytestmark = pytest.mark.unit


def execute(run: Run, args: argparse.Namespace) -> int:
    return run_command(lambda: (run, args))


def last_line(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


PAUSED = TrainingPaused("run r1 has paused", signal_number=signal.SIGTERM)


def raising(error: BaseException) -> Any:
    def run(_: argparse.Namespace) -> dict[str, Any]:
        print("some words on stdout")
        raise error

    return run


@pytest.mark.parametrize(
    ("run", "code", "result"),
    [
        (lambda _: {"version": 3}, 0, {"version": 3}),
        (lambda _: {"ok": False, "exit_code": 1}, 1, {"ok": False}),
        (raising(InvalidArgumentError("size=0")), 2, {"error": "InvalidArgumentError", "message": "size=0"}),
        (raising(SessionError("no master")), 2, {"error": "SessionError", "message": "no master"}),
        (raising(LakelensError("rank 1 died")), 1, {"error": "LakelensError", "message": "rank 1 died"}),
        (raising(RuntimeError("a defect")), 1, {"error": "RuntimeError", "message": "a defect"}),
        (raising(KeyboardInterrupt()), 130, {"error": "KeyboardInterrupt", "message": "interrupted by SIGINT"}),
        (raising(PAUSED), 143, {"error": "TrainingPaused", "message": "run r1 has paused"}),
    ],
)
def test_a_job_ends_with_a_json_line_in_a_file_too_and_an_exit_code(run, code, result, tmp_path, capsys):
    file = tmp_path / "results" / "run" / "etl.json"
    assert execute(run, argparse.Namespace(result_file=str(file))) == code
    captured = capsys.readouterr()
    assert json.loads(captured.out.splitlines()[-1]) == json.loads(file.read_text()) == result
    assert captured.err.count(f"rror: {result.get('message')}") == ("error" in result and code < 130)
    assert ("Traceback" in captured.err) == (result.get("error") == "RuntimeError")


@pytest.mark.parametrize(("kind", "code"), [("lakelens.errors.TrialError", 2), ("ValueError", 1)])
def test_what_a_rank_has_raised_decides_whether_to_try_again_and_is_one_sentence_of_json(kind, code, capsys):
    error = RankFailedError("Traceback\n\nrank 0 raised", summary=f"rank 0 raised {kind}: boom", kind=kind)
    assert execute(raising(error), argparse.Namespace()) == code
    captured = capsys.readouterr()
    assert captured.err == "error: Traceback\n\nrank 0 raised\n"
    assert json.loads(captured.out.splitlines()[-1])["message"] == f"rank 0 raised {kind}: boom"


def test_a_result_file_that_cannot_be_written_fails_the_job(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert execute(lambda _: {"version": 3}, argparse.Namespace(result_file=str(tmp_path / "file" / "x.json"))) == 1
    assert "error" in last_line(capsys)


def test_a_number_that_is_none_is_null(capsys):
    metrics = {"loss": float("nan"), "runs": [{"accuracy": 0.5}, (float("inf"), 1)]}
    assert execute(lambda _: {"metrics": metrics}, argparse.Namespace()) == 0

    def refused(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    found = json.loads(capsys.readouterr().out, parse_constant=refused)
    assert found == {"metrics": {"loss": None, "runs": [{"accuracy": 0.5}, [None, 1]]}}


def in_a_process(run: str, before: str = "", **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a job, a function of its flags, in a process of its own."""
    call = f"sys.exit(run_command(lambda: ({run}, argparse.Namespace())))"
    job = f"import argparse, sys\nfrom lakelens.jobs.command import run_command\n{before}\n{call}"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "check": False, **options}
    variables = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONIOENCODING": "ascii"}
    return subprocess.run([sys.executable, "-c", job], env=variables, **pipes)


@pytest.mark.parametrize("lines", [0, 100_000], ids=["its result", "its work"])
def test_a_reader_of_stdout_that_has_gone_ends_the_job_without_a_traceback(lines):
    read, write = os.pipe()
    os.close(read)
    done = in_a_process(
        f"lambda _: [print('a line of history', n) for n in range({lines})] and {{}} or {{}}", stdout=write
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    ("run", "before", "said"),
    [
        (r"lambda _: print('k\u00e4tze \udcff') or {'rows': 1}", "", 'k\\xe4tze \\udcff\n{"rows": 1}\n'),
        ("lambda _: {'rows': 1}", "sys.stderr = None", '{"rows": 1}\n'),
    ],
    ids=["a name that stdout cannot encode", "a closed stderr"],
)
def test_a_terminal_that_lacks_something_takes_nothing_from_stdout(run, before, said):
    done = in_a_process(run, before)
    assert (done.returncode, done.stdout) == (0, said), done.stderr


def test_a_terminated_job_lets_go_of_what_it_holds(capsys, monkeypatch):
    monkeypatch.setattr(interrupts, "end_jvm", lambda: None)  # of this process, which other tests work with
    released: list[bool] = []

    def run(_: argparse.Namespace) -> dict[str, Any]:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        finally:
            released.append(True)
        return {}

    assert execute(run, argparse.Namespace()) == 143
    assert released == [True]
    assert last_line(capsys) == {"error": "Terminated", "message": "interrupted by SIGTERM"}
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_help_names_a_default_only_where_there_is_one(capsys):
    for argv in (["etl"], ["train"], ["table", "quarantine"]):
        with pytest.raises(SystemExit):
            build_parser().parse_args([*argv, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for nothing in ("default: None", "default: []", "default: False"):
        assert nothing not in shown
    assert "all are counted (default: 1000)" in shown


@pytest.mark.parametrize(
    ("command_line", "usage"),
    [
        ("", "usage: lakelens "),
        ("nothing", "usage: lakelens "),
        ("etl", "usage: lakelens etl "),
        ("ingest", "usage: lakelens etl "),
        ("etl a b --sise 3", "usage: lakelens etl "),
        ("table nothing", "usage: lakelens table "),
        ("table history t --limit x", "usage: lakelens table history "),
    ],
)
def test_a_wrong_or_missing_flag_shows_the_usage_of_its_command_and_a_json_line(command_line, usage, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(command_line.split())
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert (stopped.value.code, found["error"]) == (2, "UsageError")
    sentence, line = captured.err.splitlines()
    assert ": error: " in sentence
    assert line.startswith(usage)
    assert found["message"].startswith(usage.removeprefix("usage: ").strip())


@pytest.mark.parametrize(
    ("command_line", "words"),
    [
        ("trian", "invalid choice: 'trian'; did you mean 'train'?"),
        ("runs shwo", "invalid choice: 'shwo'; did you mean 'show'?"),
        ("etl photos t --store jpg", "invalid choice: 'jpg'; did you mean 'jpeg'?"),
        ("train t --np 2", "unrecognized arguments: --np 2 (did you mean '--slots-per-trial'?)"),
        ("score m t p --stream --checkpoint f", ": --stream --checkpoint f (did you mean '--watch'?)"),
        ("search mine.yaml", "invalid choice: 'mine.yaml'; did you mean 'run mine.yaml'?"),
        ("train t --epoch-s 3", "unrecognized arguments: --epoch-s 3 (did you mean '--epochs'?)"),
    ],
)
def test_a_misspelt_command_action_choice_or_flag_names_the_nearest_one(command_line, words, capsys):
    with pytest.raises(SystemExit):
        main(command_line.split())
    assert last_line(capsys)["message"].endswith(words)


def test_every_command_and_action_has_an_example_that_it_takes_and_takes_a_result_file(capsys):
    parser = build_parser()
    for command_line in commands():
        examples = examples_of(f"lakelens {command_line.name}")
        assert examples, command_line.name
        for example in examples:
            assert f"  {example}\n" in f"{command_line.parser.format_help()}\n"
            args = parser.parse_args([*shlex.split(example)[1:], "--result-file", "x"])
            assert (args.run is None, args.result_file) == (False, "x")
    assert parser.parse_args(["table", "--result-file", "x", "history", "t"]).result_file == "x"
    assert capsys.readouterr().err == ""


def test_quiet_leaves_errors_and_the_json_line_alone(capsys):
    assert execute(raising(InvalidArgumentError("size=0")), argparse.Namespace(quiet=True)) == 2
    said = capsys.readouterr()
    assert (len(said.out.splitlines()), said.err) == (1, "error: size=0\n")


@pytest.mark.parametrize(
    ("command_line", "words"),
    [
        ("etl photos t --max-files 5", "--max-files 5 is for --stream alone"),
        ("train t --strategy single --master local[2]", "--master local[2]: no Spark for resources.strategy single"),
        ("train --resume r1 --seed 0", "--seed cannot be combined with --resume r1: a resumed run keeps its config"),
    ],
)
def test_a_flag_that_would_change_nothing_is_refused(command_line, words, capsys):
    assert main(command_line.split()) == 2
    assert words in last_line(capsys)["message"]


def test_pairs_of_a_flag_are_split_at_the_first_equals_sign_and_a_fraction_is_a_number():
    assert key_values(["a=b=c", "d="], "--conf") == {"a": "b=c", "d": ""}
    with pytest.raises(InvalidArgumentError, match="--conf 'novalue' is not KEY=VALUE"):
        key_values(["novalue"], "--conf")
    assert fractions(["train=0.8", "test=0.2"]) == {"train": 0.8, "test": 0.2}
    with pytest.raises(InvalidArgumentError, match="--split train='most'"):
        fractions(["train=most"])


def test_a_table_of_the_catalog_is_looked_up_in_the_session_that_was_asked_for(monkeypatch, capsys):
    def opened(master: str, *_: object) -> None:
        raise LakelensError(f"a session on {master}")

    monkeypatch.setattr(command, "_open_session", opened)
    assert main(["train", "photos.birds", "--strategy", "single", "--master", "local[3]"]) == 1
    assert last_line(capsys)["message"] == "a session on local[3]"


def test_the_flags_of_a_training_set_keys_of_its_experiment(monkeypatch):
    given: list[ExperimentConfig] = []

    def run_trial(config: ExperimentConfig, **_: object) -> None:
        given.append(config)
        raise LakelensError("told")

    monkeypatch.setattr("lakelens.training.experiment.run_trial.run_trial", run_trial)
    flags = "--slots-per-trial 2 --strategy horovod_local --epochs 3 --global-batch-size 8 --seed 0"
    flags += " --metric val_accuracy --image-size 24x32"
    rare = "--set data.filters.n=[1,2] --set early_stopping.patience=3 --set resources.env.A=b=c"
    assert main(["train", "t@4", *flags.split(), *rare.split()]) == 1
    (config,) = given
    assert (config.resources.strategy, config.resources.slots_per_trial) == ("horovod_local", 2)
    assert (config.data.version, config.data.image_size) == (4, [24, 32])
    assert (config.searcher.max_length.epochs, config.global_batch_size, config.goal.mode) == (3, 8, "max")
    assert config.early_stopping is not None
    assert (config.data.filters, config.reproducibility.experiment_seed) == ({"n": [1, 2]}, 0)
    assert (config.early_stopping.patience, config.resources.env) == (3, {"A": "b=c"})


def test_a_result_becomes_task_values_on_databricks_alone(monkeypatch):
    from lakelens.jobs import task_values

    given: dict[str, Any] = {}

    class TaskValues:
        """What the runtime's dbutils has; nothing of a workspace can run here."""

        def set(self, *, key: str, value: Any) -> None:
            given[key] = value

    monkeypatch.setattr(task_values, "_task_values", TaskValues)
    task_values.set_task_values({"version": 1})
    assert given == {}
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "15.4")
    task_values.set_task_values({"version": 1, "due": True, "nothing": None, "paths": ["x" * 1000] * 60})
    assert given == {"version": 1, "due": True}


@pytest.mark.parametrize("name", ["etl", "train", "search", "score", "evaluate", "table"])
def test_the_file_of_a_job_runs_its_command(name):
    done = run_to_end([sys.executable, str(Path(__file__).parents[2] / "jobs" / f"{name}.py"), "--help"])
    assert done.stdout.startswith(f"usage: lakelens {name} ")
