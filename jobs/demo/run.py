"""`lakelens demo`: why a model is only as good as the version of the data that it was trained on."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakelens.errors import InvalidArgumentError
from lakelens.extras import require
from lakelens.jobs.demo.images import require_folder

if TYPE_CHECKING:
    from lakelens.jobs.demo.story import Demo

DESCRIPTION = "Show the whole path, from a folder of images to a scored Delta table, and why data versions matter."

MARKER = ".lakelens-demo"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the demo's flags."""
    parser.add_argument("--images", default=None, type=Path, help="your own class folders; default: scanned digits")
    parser.add_argument(
        "--out",
        default=Path("lakelens-demo"),
        type=Path,
        help="folder for all results; an earlier demo's folder is replaced",
    )
    parser.add_argument("--search", action="store_true", help="show a search over one version instead")
    parser.add_argument("--detection", action="store_true", help="train detectors on scenes with boxes instead")
    parser.add_argument("--framework", default="keras", choices=["keras", "torch"], help="framework of the models")
    parser.add_argument("--size", default=32, type=int, help="side of the stored square images in pixels")
    parser.add_argument("--epochs", default=8, type=int, help="epochs of each training")
    parser.add_argument("--global-batch-size", default=64, type=int, help="images per step over both ranks")
    parser.add_argument("--limit-per-class", default=400, type=int, help="with --images: files taken per class")


def _demo_of(args: argparse.Namespace) -> type[Demo]:
    if args.detection:
        from lakelens.jobs.demo.detection import DetectionDemo

        return DetectionDemo
    if args.search:
        from lakelens.jobs.demo.search import SearchDemo

        return SearchDemo
    from lakelens.jobs.demo.story import Demo

    return Demo


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the demo and returns its summary.

    Raises:
        InvalidArgumentError: If a flag is outside what its rule allows, or `--out` holds `--images` or is something
            that the demo did not make.
        SourceNotFoundError: If `--images` is not a folder.
    """
    from lakelens.training.segments.backend import FRAMEWORKS

    packages = FRAMEWORKS[args.framework].packages
    require("lakelens demo", "pyspark", "delta", "mlflow", *packages, "sklearn", "matplotlib")
    _check(args)
    out = _fresh_folder(args.out)
    demo = _demo_of(args)(args, out)
    try:
        return demo.tell()
    finally:
        demo.close()


def _check(args: argparse.Namespace) -> None:
    """Checks the flags before an earlier demo's folder goes, and makes `--images` absolute."""
    for name in ("size", "epochs", "global_batch_size", "limit_per_class"):
        if getattr(args, name) < 1:
            raise InvalidArgumentError(f"--{name.replace('_', '-')} {getattr(args, name)} must be 1 or more")
    if args.framework != "keras" and (args.search or args.detection):
        raise InvalidArgumentError(
            f"--framework {args.framework} is for the demo of a pipeline; leave out --search and --detection"
        )
    if args.images is None:
        return
    args.images = args.images.expanduser().absolute()
    require_folder(args.images)
    out, images = args.out.expanduser().resolve(), args.images.resolve()
    if out == images or out in images.parents:
        raise InvalidArgumentError(
            f"--images {args.images} lies in --out {args.out}, which the demo replaces; name another --out"
        )


def _fresh_folder(out: Path) -> Path:
    """Makes the demo's folder again; only a folder that an earlier demo made is removed.

    Raises:
        InvalidArgumentError: If `out` exists and is something else.
    """
    out = out.expanduser().absolute()
    if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        if not (out / MARKER).is_file():
            raise InvalidArgumentError(
                f"--out {out} exists and was not made by the demo, which would delete it; name another folder"
            )
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).write_text("The demo made this folder and may delete it.\n", encoding="utf-8")
    return out
