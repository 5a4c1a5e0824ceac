"""The images of the demo: digits as JPEG files in class folders, or the user's own, with one class held back."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lakelens.errors import EmptySourceError, SourceNotFoundError
from lakelens.etl.files.layouts import class_of_folder

DIGIT_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
DIGIT_SIDE_PX = 96
HELD_BACK_DIGIT = "eight"
# As few as a class that was just discovered in production: enough to exist, too few to learn from.
FIRST_FILES_OF_HELD_BACK = 4
JPEG_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff"})


@dataclass(frozen=True)
class DemoImages:
    """Where the demo's files lie before the first ingest."""

    source: Path  # Class folders that are ingested
    arrivals: Path  # Class folders of files that arrive later
    held_back: str  # Name of the under-represented class, as the table will name it
    files: int  # Number of files in `source`, broken ones included
    late_files: int  # Number of files in `arrivals`
    broken: tuple[Path, ...]  # The files that are broken on purpose


def write_digits(folder: Path) -> DemoImages:
    """Writes scikit-learn's 1,797 scanned digits as JPEG class folders (`001.zero/001_0001.jpg`), two of them broken.

    The scans are 8x8 pixels of 17 grey levels (UCI Optical Recognition of Handwritten Digits); they are enlarged to
    96x96 so that they are images that any viewer shows.
    """
    from PIL import Image
    from sklearn.datasets import load_digits

    source, arrivals = folder / "images", folder / "arrivals"
    digits = load_digits()
    seen: dict[int, int] = defaultdict(int)
    for scan, digit in zip(digits.images, digits.target.tolist(), strict=True):
        seen[digit] += 1
        name = DIGIT_NAMES[digit]
        late = name == HELD_BACK_DIGIT and seen[digit] > FIRST_FILES_OF_HELD_BACK
        target = _class_folder(arrivals if late else source, digit) / f"{digit + 1:03d}_{seen[digit]:04d}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        small = Image.fromarray((255 - scan * (255 / 16)).astype("uint8"))
        small.resize((DIGIT_SIDE_PX, DIGIT_SIDE_PX), Image.Resampling.BICUBIC).save(target, quality=90)
    broken = _break_two(source)
    return _counted(source, arrivals, HELD_BACK_DIGIT, broken)


def require_folder(images: Path) -> None:
    """Checks that a user's images are in a folder."""
    if not images.is_dir():
        raise SourceNotFoundError(f"{images} is not a folder; --images must name a folder with one subfolder per class")


def link_own(images: Path, folder: Path, limit_per_class: int) -> DemoImages:
    """Links a user's class folders, holding back most of the largest class; the user's folder is only read."""
    require_folder(images)
    classes = {d.name: sorted(_image_files(d))[:limit_per_class] for d in sorted(images.iterdir()) if d.is_dir()}
    classes = {name: files for name, files in classes.items() if files and not name.startswith((".", "_"))}
    if len(classes) < 2:
        raise EmptySourceError(
            f"{images} has {len(classes)} subfolders with images; the demo compares classes and needs at least 2, "
            "one subfolder per class"
        )
    held_back = max(classes, key=lambda name: len(classes[name]))
    if len(classes[held_back]) <= FIRST_FILES_OF_HELD_BACK:
        raise EmptySourceError(
            f"{images}: no class has more than {len(classes[held_back])} images that are taken (limit_per_class "
            f"{limit_per_class}); all but {FIRST_FILES_OF_HELD_BACK} of the largest class are to arrive later"
        )
    source, arrivals = folder / "images", folder / "arrivals"
    for name, files in classes.items():
        for index, file in enumerate(files):
            late = name == held_back and index >= FIRST_FILES_OF_HELD_BACK
            target = (arrivals if late else source) / name / file.relative_to(images / name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(file.resolve())
    return _counted(source, arrivals, class_of_folder(held_back), ())


def deliver(images: DemoImages) -> None:
    """Moves the files that arrive later into the folder that is ingested."""
    for file in sorted(f for f in images.arrivals.rglob("*") if f.is_file()):
        target = images.source / file.relative_to(images.arrivals)
        target.parent.mkdir(parents=True, exist_ok=True)
        file.rename(target)
    shutil.rmtree(images.arrivals)


def _image_files(folder: Path) -> Iterator[Path]:
    return (f for f in folder.rglob("*") if f.is_file() and f.suffix.lower() in JPEG_SUFFIXES)


def _class_folder(root: Path, digit: int) -> Path:
    return root / f"{digit + 1:03d}.{DIGIT_NAMES[digit]}"


def _break_two(source: Path) -> tuple[Path, Path]:
    whole = _class_folder(source, 0) / "001_0001.jpg"
    truncated = whole.with_name("001_truncated.jpg")
    truncated.write_bytes(whole.read_bytes()[:400])
    text = _class_folder(source, 1) / "002_notes.jpg"
    text.write_text("A text file that somebody renamed.\n", encoding="utf-8")
    return truncated, text


def _counted(source: Path, arrivals: Path, held_back: str, broken: tuple[Path, ...]) -> DemoImages:
    files = sum(1 for f in source.rglob("*") if f.is_file())
    late = sum(1 for f in arrivals.rglob("*") if f.is_file())
    return DemoImages(source, arrivals, held_back, files, late, broken)
