"""Ingests a folder of images as one new version of an image table (`lakelens etl`, or spark-submit)."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import Any

from lakelens.jobs.command import add_session_arguments, key_values, main_of, session_of

DESCRIPTION = "Ingest a folder of images as one new version of an image table."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the job's flags."""
    parser.add_argument("source", help="folder of images (path or URI)")
    parser.add_argument("table", help="table to write: path, URI or catalog.schema.table")
    parser.add_argument("--layout", default="class_folders", help="how the source is laid out")
    recipe = parser.add_argument_group("recipe", "Fixed by a table's first ingest; a later one may leave it out.")
    recipe.add_argument("--size", type=int, default=None, help="side of the stored square image in pixels; 299")
    recipe.add_argument("--resize", default=None, help="fit (padded), crop, stretch or none; fit")
    recipe.add_argument("--store", default=None, help="jpeg, raw_rgb or original; jpeg")
    recipe.add_argument("--quality", type=int, default=None, help="JPEG quality, 1-100")
    recipe.add_argument(
        "--split",
        action="append",
        default=[],
        metavar="NAME=FRACTION",
        help="a split and its share; several; train=0.8 validation=0.1 test=0.1",
    )
    recipe.add_argument("--seed", type=int, default=None, help="seed of the split; 0")
    add_session_arguments(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the ingest and returns version and counts."""
    from lakelens.etl.tables import ImageTable
    from lakelens.progress import spark_progress

    spark = session_of(args, f"lakelens etl {args.table}")
    with spark_progress(spark, "ingest"):
        result = ImageTable(spark, args.table).ingest(
            args.source,
            layout=args.layout,
            size=args.size,
            resize=args.resize,
            store=args.store,
            quality=args.quality,
            splits=fractions(args.split) if args.split else None,
            seed=args.seed,
        )
    return {"table": args.table, **dataclasses.asdict(result)}


def fractions(pairs: list[str]) -> dict[str, float]:
    """Reads `NAME=FRACTION` flags.

    Raises:
        InvalidArgumentError: If a fraction is not a number.
    """
    from lakelens.errors import InvalidArgumentError

    result: dict[str, float] = {}
    for name, text in key_values(pairs, "--split").items():
        try:
            result[name] = float(text)
        except ValueError:
            raise InvalidArgumentError(f"--split {name}={text!r}: {text!r} is not a number, as in train=0.8") from None
    return result


def main() -> int:
    """Runs the job with the process's own flags."""
    return main_of(DESCRIPTION, add_arguments, run)


if __name__ == "__main__":
    sys.exit(main())
