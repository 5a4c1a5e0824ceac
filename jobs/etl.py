"""Ingests images as one new version of an image table, or as a stream of them (`lakelens etl`, or spark-submit)."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import TYPE_CHECKING, Any

from lakelens.errors import InvalidArgumentError
from lakelens.jobs.command import add_session_arguments, key_values, main_of, session_of

if TYPE_CHECKING:
    from lakelens.etl.ingest.label_changes import ClassChanges
    from lakelens.etl.ingest.results import IngestRequest, IngestResult

DESCRIPTION = "Ingest a folder of images as one new version of an image table."
_FILES_OF_A_BATCH = 10_000
_PATHS_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the job's flags."""
    parser.add_argument("source", help="folder of images (path or URI)")
    parser.add_argument("table", help="table to write: path, URI or catalog.schema.table")
    parser.add_argument(
        "--layout", default="class_folders", help="class_folders, nested_class_folders, voc, coco or manifest"
    )
    parser.add_argument("--annotations", default=None, help="COCO: the instances file, when its name is no usual one")
    parser.add_argument("--images", default=None, help="manifest: folder that relative paths start from")
    parser.add_argument(
        "--class", action="append", default=[], dest="classes", metavar="NAME", help="store these alone; several"
    )
    parser.add_argument("--batch-id", default=None, help="name of the batch in every row and in the history")
    parser.add_argument("--dry-run", action="store_true", help="only tell what would be done; reads no image")
    parser.add_argument(
        "--removed", default="keep", help="keep or delete the rows of files that the source no longer holds"
    )
    parser.add_argument(
        "--verify", default="stamp", help="what tells that a known file is unchanged: stamp (size, time) or content"
    )
    parser.add_argument(
        "--near-duplicates", action="store_true", help="look for new images that look like one of another split"
    )
    parser.add_argument(
        "--allow-loss",
        action="store_true",
        help="let the ingest take more than half of the stored rows, or all of a class of 20 or more, out of the table",
    )
    stream = parser.add_argument_group("stream", "The source is a landing folder: what is there now, then the end.")
    stream.add_argument("--stream", action="store_true", help="ingest in batches, each a version of its own")
    stream.add_argument("--max-files", type=int, default=None, help="most files that a batch reads; 10,000")
    recipe = parser.add_argument_group("recipe", "Fixed by a table's first ingest; a later one may leave it out.")
    recipe.add_argument("--size", type=int, default=None, help="side of the stored square image in pixels; 299")
    recipe.add_argument("--resize", default=None, help="fit (padded), crop, stretch or none; fit")
    recipe.add_argument("--resample", default=None, help="lanczos, bicubic, hamming, bilinear or box; lanczos")
    recipe.add_argument("--store", default=None, help="jpeg, raw_rgb or original; jpeg")
    recipe.add_argument("--quality", type=int, default=None, help="JPEG quality, 1-100; 90")
    recipe.add_argument("--subsampling", default=None, help="chroma of a JPEG: 4:2:0, 4:2:2 or 4:4:4; 4:2:0")
    recipe.add_argument(
        "--split",
        action="append",
        default=[],
        metavar="NAME=FRACTION",
        help="a split and its share; several; train=0.8 validation=0.1 test=0.1",
    )
    recipe.add_argument("--seed", type=int, default=None, help="seed of the split; 0")
    _add_limits(parser)
    add_session_arguments(parser)


def _add_limits(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("limits", "What one image may cost before it is quarantined.")
    group.add_argument("--max-bytes", type=int, default=None, help="largest file; 256 MiB")
    group.add_argument("--max-pixels", type=int, default=None, help="largest width x height; 100 million")
    group.add_argument("--timeout-s", type=float, default=None, help="seconds for one image; 60")
    group.add_argument("--memory-bytes", type=int, default=None, help="memory to decode one image; 2 GiB")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the ingest, the stream or the dry run, and returns version and counts."""
    from lakelens.etl.image_table import ImageTable
    from lakelens.etl.ingest.label_changes import ClassChanges
    from lakelens.etl.ingest.landing import ingest_available
    from lakelens.etl.ingest.run import ingest, preview

    request = _request(args)
    request.check()
    if args.max_files is not None and not args.stream:
        raise InvalidArgumentError(f"--max-files {args.max_files} is for --stream alone; add that, or leave it out")
    spark = session_of(args, f"lakelens etl {args.table}")
    location = ImageTable(spark, args.table).location
    if args.dry_run:
        found = preview(spark, location, request, _PATHS_SHOWN)
        for status, paths in found.files.items():
            for path in paths:
                print(f"{status:<8} {path}")
        _tell_classes(ClassChanges(found.vanished_classes))
        return {"table": args.table, "dry_run": True, **dataclasses.asdict(found)}
    if args.stream:
        streamed = ingest_available(spark, location, request, _files_of_a_batch(args), _tell_batch)
        _tell_classes(streamed.class_changes)
        return {"table": args.table, **dataclasses.asdict(streamed), "batches": len(streamed.batches)}
    result = ingest(spark, location, request)
    _tell_classes(result.class_changes)
    return {"table": args.table, **dataclasses.asdict(result)}


def _files_of_a_batch(args: argparse.Namespace) -> int:
    return _FILES_OF_A_BATCH if args.max_files is None else int(args.max_files)


def _request(args: argparse.Namespace) -> IngestRequest:
    from lakelens.etl.images.recipe import Limits
    from lakelens.etl.ingest.options import RecipeOptions
    from lakelens.etl.ingest.results import IngestRequest
    from lakelens.etl.sources.sources import Source

    limits = {name: getattr(args, name) for name in ("max_bytes", "max_pixels", "timeout_s", "memory_bytes")}
    recipe = {name: getattr(args, name) for name in RecipeOptions.__annotations__ if name != "splits"}
    return IngestRequest(
        Source(args.source, args.layout, args.annotations, args.images),
        {**recipe, "splits": fractions(args.split) if args.split else None},
        Limits(**{name: value for name, value in limits.items() if value is not None}),
        removed=args.removed,
        verify=args.verify,
        classes=args.classes or None,
        batch_id=args.batch_id,
        near_duplicates=args.near_duplicates,
        allow_loss=args.allow_loss,
    )


def _tell_batch(result: IngestResult) -> None:
    print(f"version {result.version}: {result.stored} stored, {result.quarantined} quarantined", file=sys.stderr)


def _tell_classes(changes: ClassChanges) -> None:
    for sentence in changes.sentences():
        print(sentence, file=sys.stderr)


def fractions(pairs: list[str]) -> dict[str, float]:
    """Reads `NAME=FRACTION` flags.

    Raises:
        InvalidArgumentError: If a fraction is not a number.
    """
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
