"""The `lakelens` command."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from lakelens import __version__
from lakelens.jobs.command import JobParser, Run, add_common_arguments, run_command

# Each module has DESCRIPTION, add_arguments(parser), and run(args) unless its actions set it.
COMMANDS = (
    "etl",
    "table",
    "train",
    "search",
    "score",
    "evaluate",
    "models",
    "export",
    "runs",
    "reproduce",
    "trace",
    "tensorboard",
    "schema",
    "init",
    "doctor",
    "demo",
)


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
