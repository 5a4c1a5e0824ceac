"""Opens TensorBoard on the metrics that runs have recorded (`lakelens tensorboard RUN...`)."""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from lakelens.extras import require
from lakelens.jobs.command import add_tracking_argument

DESCRIPTION = "Open TensorBoard on the metrics that runs have recorded so far, until Ctrl-C."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the job's flags."""
    parser.add_argument("run_ids", nargs="+", metavar="RUN", help="a training's run, or a search's: all its trials")
    parser.add_argument("--port", type=int, default=6006, help="port of the page; 0 takes a free one")
    parser.add_argument("--host", default="localhost", help="address to listen on")
    add_tracking_argument(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Writes the logs, and serves the page until the command is interrupted or TensorBoard ends."""
    require("lakelens tensorboard", "tensorboard")
    from lakelens.training.record.run_files import write_run_logs

    with tempfile.TemporaryDirectory(prefix="lakelens-tensorboard-") as folder:
        runs = write_run_logs(args.run_ids, Path(folder), tracking_uri=args.tracking_uri)
        flags = ["--logdir", folder, "--host", args.host, "--port", str(args.port)]
        code = 0
        with contextlib.suppress(KeyboardInterrupt):
            code = subprocess.run([sys.executable, "-m", "tensorboard.main", *flags], check=False).returncode
    return {"runs": runs, "exit_code": code}
