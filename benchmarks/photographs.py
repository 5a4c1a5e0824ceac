"""Thousands of real photographs near 400 x 330 pixels: varied crops of the two that scikit-learn ships."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

CLASSES = 8
_SOURCES = ("china", "flower")
# The folders' names, in the numbered form of Caltech-256.
CLASS_NAMES = [f"{number + 1:03d}.{_SOURCES[number % 2]}-{number // 2}" for number in range(CLASSES)]
_SEED = 0
_FEW = 64
_QUALITY = 90


@dataclass(frozen=True)
class Photographs:
    """A folder of photographs in class folders."""

    folder: Path  # Holds `<number>.<name>/<index>.jpg`
    count: int  # How many

    @property
    def files(self) -> list[Path]:
        """All photographs, in the order of their indices."""
        return [self.folder / CLASS_NAMES[index % CLASSES] / f"{index:06d}.jpg" for index in range(self.count)]


def photographs(folder: Path, count: int) -> Photographs:
    """Makes photographs, or finds them where an earlier call has made them.

    Each is a crop of 340 to 460 by 280 to 380 pixels, mirrored or not, brighter or darker, saved as JPEG of a quality
    between 80 and 95: what phones and the web give. Half of the classes come from each source image; its tint
    identifies a class. The same count gives the same bytes with the same Pillow.
    """
    home = folder / f"photographs-{count}"
    if not home.exists():
        half_made = home.with_name(f"{home.name}-half-made")
        shutil.rmtree(half_made, ignore_errors=True)
        for name in CLASS_NAMES:
            (half_made / name).mkdir(parents=True)
        with ProcessPoolExecutor(max_workers=os.cpu_count() if count > _FEW else 1) as pool:
            list(pool.map(_make, Photographs(half_made, count).files, range(count), chunksize=32))
        half_made.rename(home)
    return Photographs(home, count)


def subset(photos: Photographs, count: int, folder: Path) -> Photographs:
    """Hard-links the first `count` photographs into its own folder."""
    result = Photographs(folder, count)
    for source, target in zip(photos.files, result.files, strict=False):
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(source, target)
    return result


def scaled(photos: Photographs, folder: Path, side: int) -> Photographs:
    """Stores photographs as squares in another folder."""
    from PIL import Image

    result = Photographs(folder, photos.count)
    for source, target in zip(photos.files, result.files, strict=True):
        target.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(source) as image:
            image.resize((side, side)).save(target, quality=_QUALITY)
    return result


def _make(path: Path, index: int) -> None:
    _photograph(index).save(path, quality=80 + (index * 7 + _SEED) % 16)


def _photograph(index: int) -> Image.Image:
    import numpy as np
    from PIL import Image, ImageEnhance

    number = index % CLASSES
    random = np.random.default_rng([_SEED, index])
    source = _source(_SOURCES[number % 2])
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
