"""The `lakelens` command."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from functools import partial

from lakelens import __version__
from lakelens.jobs.command import EXAMPLES_HEADING, JobParser, Run, run_command

# Each module has DESCRIPTION, add_arguments(parser), and run(args) unless its actions set it.
COMMANDS = (
    *("etl", "table", "train", "search", "score", "evaluate", "models", "export"),
    *("runs", "reproduce", "trace", "tensorboard", "schema", "init", "doctor", "demo"),
)
# The examples of `--help`; a test parses each of them.
_EXAMPLES = """\
lakelens etl photos/ tables/photos --size 224
lakelens etl s3://bucket/photos main.vision.photos --dry-run
lakelens etl landing/ tables/photos --stream --max-files 5000
lakelens table history tables/photos --limit 10
lakelens table counts tables/photos@3
lakelens table diff tables/photos 2 3
lakelens table changes tables/photos 2 3 --limit 20
lakelens table quarantine tables/photos --reason truncated
lakelens table profile tables/photos@3 --out profile/
lakelens table tracked tables/photos
lakelens table pin tables/photos@3 golden
lakelens table unpin tables/photos golden
lakelens table untrack tables/photos --older-than 90d
lakelens table vacuum tables/photos --dry-run
lakelens table restore tables/photos@2
lakelens table repair tables/photos --dry-run
lakelens table optimize tables/photos
lakelens table delete tables/photos "label_name = 'cat' AND width < 32"
lakelens table rename-class tables/photos cta cat
lakelens train tables/photos@3 --entrypoint birds.py:Birds --epochs 5
lakelens train experiment.yaml --set data.version=3 --dry-run
lakelens train --resume RUN
lakelens search preview experiment.yaml --seconds-per-epoch 30
lakelens search run experiment.yaml --set searcher.max_trials=16
lakelens search resume RUN
lakelens search pause RUN
lakelens search stop RUN
lakelens search report RUN --out report/
lakelens score models:/birds@champion tables/photos@3 tables/predictions
lakelens score models:/birds@champion tables/photos tables/predictions --watch 60
lakelens evaluate runs:/RUN tables/photos@3 --compare models:/birds@champion --out evaluation/
lakelens models alias models:/birds/2 champion
lakelens models promote runs:/RUN birds --alias candidate
lakelens models promote runs:/RUN birds --if-better accuracy --on tables/photos@3
lakelens models exists birds champion
lakelens models stale birds tables/photos --min-new-rows 1000
lakelens export models:/birds@champion --format savedmodel --out served/
lakelens runs --experiment birds --limit 20
lakelens runs show RUN
lakelens runs pause RUN
lakelens runs kill RUN
lakelens runs code RUN restored/
lakelens reproduce RUN
lakelens trace tables/predictions file:/data/photos/cat/1.jpg
lakelens trace --run RUN --in tables/predictions
lakelens tensorboard RUN
lakelens schema --result-file experiment.schema.json
lakelens init project/ --table tables/photos
lakelens doctor
lakelens demo --images photos/
"""


def build_parser() -> argparse.ArgumentParser:
    """Builds the parser of all commands."""
    parser = JobParser(
        prog="lakelens",
        description="From a folder of images to a scored Delta table on Spark.",
        epilog="The last line on stdout is one JSON object. Exit code: 0 done, 1 failed, 2 usage or configuration, "
        "130 Ctrl-C, 143 SIGTERM.",
    )
    parser.add_argument("--version", action="version", version=f"lakelens {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        module = importlib.import_module(f"lakelens.jobs.{name}")
        command = commands.add_parser(name, help=module.DESCRIPTION, description=module.DESCRIPTION)
        if hasattr(module, "run"):
            command.set_defaults(run=module.run)
        module.add_arguments(command)
        add_common_arguments(command)
    return parser


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds `--result-file`, `--quiet`, `--verbose` and the examples to a command, and to each of its actions."""
    for action in list(parser._actions):
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                add_common_arguments(sub)
    parser.epilog = EXAMPLES_HEADING + "\n".join(f"  {line}" for line in examples_of(parser.prog))
    # Suppressed: an action's own default would undo what was given before its name.
    add = partial(parser.add_argument, default=argparse.SUPPRESS)
    add("--result-file", metavar="PATH|URI", help="write the JSON object of the last stdout line here too")
    text = "print nothing but errors and the JSON object of the last stdout line"
    add("--quiet", action="store_true", help=text)
    add("--verbose", action="store_true", help="show the start-up messages of Spark, Ivy and TensorFlow")


def examples_of(command: str) -> list[str]:
    """Lists the example lines of a command, such as `lakelens table`, with those of its actions."""
    return [line for line in _EXAMPLES.splitlines() if f"{line} ".startswith(f"{command} ")]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line."""

    def parsed() -> tuple[Run, argparse.Namespace]:
        words = list(sys.argv[1:] if argv is None else argv)
        # What `ImageTable.ingest` does is called etl here; both words are understood.
        args = build_parser().parse_args(["etl", *words[1:]] if words[:1] == ["ingest"] else words)
        args.words = words
        return args.run, args

    return run_command(parsed, ends_process=argv is None)


if __name__ == "__main__":
    sys.exit(main())
