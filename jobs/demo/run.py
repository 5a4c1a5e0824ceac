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
# The flags that each demo takes next to --out, with their defaults.
_FLAGS: dict[str, dict[str, Any]] = {
    "": {
        "images": None,
        "framework": "keras",
        "size": 32,
        "epochs": 8,
        "global_batch_size": 64,
        "limit_per_class": 400,
    },
    "--search": {"images": None, "framework": "keras", "limit_per_class": 400},
    "--detection": {"framework": "keras", "size": 160, "epochs": 7, "global_batch_size": 8},
}
# Smaller scenes have no place for digits that can be read.
_LEAST_SCENE_PX = 64


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
    parser.add_argument("--framework", choices=["keras", "torch"], help="framework of the models; default: keras")
    for flag, what in (
        ("size", "side of the stored square images in pixels"),
        ("epochs", "epochs of each training"),
        ("global_batch_size", "images per step over both ranks"),
    ):
        defaults = f"default: {_FLAGS[''][flag]}, with --detection {_FLAGS['--detection'][flag]}"
        parser.add_argument(f"--{flag.replace('_', '-')}", type=int, help=f"{what}; {defaults}")
    parser.add_argument(
        "--limit-per-class",
        type=int,
        help=f"with --images: files taken per class; default: {_FLAGS['']['limit_per_class']}",
    )


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
    """Runs the demo and returns its summary."""
    from lakelens.training.segments.backend import FRAMEWORKS

    _fill_in(args)
    _check(args)
    packages = FRAMEWORKS[args.framework].packages
    require("lakelens demo", "pyspark", "delta", "mlflow", *packages, "sklearn", "matplotlib")
    out = _fresh_folder(args.out)
    demo = _demo_of(args)(args, out)
    try:
        return demo.tell()
    finally:
        demo.close()


def _fill_in(args: argparse.Namespace) -> None:
    """Gives flags that the user left out the defaults of the chosen demo, and refuses those that it does not take."""
    if args.search and args.detection:
        raise InvalidArgumentError("--search and --detection are two demos; give one of them")
    chosen = "--detection" if args.detection else "--search" if args.search else ""
    for flag in _FLAGS[""]:
        value = getattr(args, flag)
        if value is None:
            setattr(args, flag, _FLAGS[chosen].get(flag))
        elif flag not in _FLAGS[chosen]:
            raise InvalidArgumentError(f"{_named(flag, value)} does not go with {chosen}; leave one of them out")


def _named(flag: str, value: object) -> str:
    return f"--{flag.replace('_', '-')} {value}"


def _check(args: argparse.Namespace) -> None:
    """Checks the flags before an earlier demo's folder goes, and makes `--images` absolute."""
    for flag in ("size", "epochs", "global_batch_size", "limit_per_class"):
        value, least = getattr(args, flag), _LEAST_SCENE_PX if args.detection and flag == "size" else 1
        if value is not None and value < least:
            raise InvalidArgumentError(f"{_named(flag, value)} must be {least} or more")
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
    """Makes the demo's folder again; only a folder that an earlier demo made is removed."""
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
