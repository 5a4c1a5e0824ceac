"""Thousands of real photographs near 400 x 330 pixels: varied crops of the two that scikit-learn ships."""

from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

_NAMES = ("china", "flower")
# A description of what was made lies beside the class folders; a folder without it is half-made.
_DESCRIPTION = "photographs.json"
_FORMAT = 1
_FEW = 64
_QUALITY = 90


@dataclass(frozen=True)
class Photographs:
    """A folder of photographs in class folders."""

    folder: Path  # Holds `<number>.<name>/<index>.jpg`
    count: int  # How many
    bytes: int  # The sum of the files' sizes
    classes: int  # How many class folders
    seed: int  # What they were made from


def photographs(folder: Path, count: int, *, classes: int = 8, seed: int = 0) -> Photographs:
    """Makes photographs, or finds them where an earlier call has made them.

    Each is a crop of 340 to 460 by 280 to 380 pixels, mirrored or not, brighter or darker, saved as JPEG of a quality
    between 80 and 95: what phones and the web give. Half of the classes come from each source image; its tint
    identifies a class. The same arguments give the same bytes with the same Pillow.
    """
    home = folder / f"photographs-{count}-{classes}-{seed}"
    found = _description(home)
    if found is not None:
        return found
    shutil.rmtree(home, ignore_errors=True)
    for number in range(classes):
        (home / class_name(number)).mkdir(parents=True)
    with ProcessPoolExecutor(max_workers=os.cpu_count() if count > _FEW else 1) as pool:
        sizes = pool.map(_make, ((home, index, classes, seed) for index in range(count)), chunksize=32)
        result = Photographs(home, count, sum(sizes), classes, seed)
    description = {**asdict(result), "folder": home.name, "format": _FORMAT}
    (home / _DESCRIPTION).write_text(json.dumps(description), encoding="utf-8")
    return result


def class_name(number: int) -> str:
    """The folder's name, in the numbered form of Caltech-256: `001.china-0`."""
    return f"{number + 1:03d}.{_NAMES[number % 2]}-{number // 2}"


def files(photos: Photographs) -> list[Path]:
    """All photographs, in the order of their indices."""
    return [_path(photos.folder, index, photos.classes) for index in range(photos.count)]


def subset(photos: Photographs, count: int, folder: Path) -> Photographs:
    """Hard-links the first `count` photographs into its own folder."""
    size = 0
    for index in range(count):
        source = _path(photos.folder, index, photos.classes)
        target = _path(folder, index, photos.classes)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(source, target)
        size += source.stat().st_size
    return Photographs(folder, count, size, min(photos.classes, count), photos.seed)


def scaled(photos: Photographs, folder: Path, side: int) -> Photographs:
    """Stores photographs as squares in another folder."""
    from PIL import Image

    size = 0
    for path in files(photos):
        place = folder / path.parent.name / path.name
        place.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as image:
            image.resize((side, side)).save(place, quality=_QUALITY)
        size += place.stat().st_size
    return replace(photos, folder=folder, bytes=size)


def _description(home: Path) -> Photographs | None:
    try:
        found = json.loads((home / _DESCRIPTION).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    if found.pop("format", None) != _FORMAT:
        return None
    return Photographs(**{**found, "folder": home})


def _path(home: Path, index: int, classes: int) -> Path:
    return home / class_name(index % classes) / f"{index:06d}.jpg"


def _make(task: tuple[Path, int, int, int]) -> int:
    home, index, classes, seed = task
    path = _path(home, index, classes)
    _photograph(index, classes, seed).save(path, quality=80 + (index * 7 + seed) % 16)
    return path.stat().st_size


def _photograph(index: int, classes: int, seed: int) -> Image.Image:
    import numpy as np
    from PIL import Image, ImageEnhance

    number = index % classes
    random = np.random.default_rng([seed, index])
    source = _source(_NAMES[number % 2])
    width, height = int(random.integers(340, 461)), int(random.integers(280, 381))
    left = int(random.integers(0, source.width - width + 1))
    top = int(random.integers(0, source.height - height + 1))
    image = source.crop((left, top, left + width, top + height))
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    image = ImageEnhance.Brightness(image).enhance(float(random.uniform(0.75, 1.25)))
    tint = 0.25 * (number // 2)
    return ImageEnhance.Color(image).enhance(1.0 + tint)


@cache
def _source(name: str) -> Image.Image:
    from PIL import Image
    from sklearn.datasets import load_sample_image

    return Image.fromarray(load_sample_image(f"{name}.jpg"))
