"""Pictures with boxes: scikit-learn's scanned digits, turned, scaled and coloured, on crops of its photographs.

The pixels are real and nothing is downloaded. `write_voc` writes scenes for an ingest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
import numpy.typing as npt
from PIL import Image

from lakelens.training.tasks.boxes import overlaps

_MOST_OBJECTS = 8
_SMALLEST, _LARGEST = 24, 64
_MOST_OVERLAP = 0.3
_INK = 0.25
_LEAST_CONTRAST = 60
_TRIES = 30
_TURN_DEGREES = 20
_QUALITY = 92

Pixels = npt.NDArray[np.uint8]
Corners = tuple[int, int, int, int]


@dataclass(frozen=True)
class Scene:
    """A picture and its objects."""

    pixels: Pixels  # uint8 [side, side, 3]
    boxes: list[Corners]  # Corners of each digit, half-open, in pixels
    labels: list[int]  # The digits


class DigitScenes:
    """Draws scenes; the same arguments give the same ones."""

    def __init__(self, *, held_out: bool, seed: int, side: int = 192, chance: Sequence[float] | None = None) -> None:
        from sklearn.datasets import load_digits, load_sample_images
        from sklearn.model_selection import train_test_split

        data = load_digits()
        parts = train_test_split(data.images, data.target, test_size=0.25, random_state=0, stratify=data.target)
        self._digits, self._labels = (parts[1], parts[3]) if held_out else (parts[0], parts[2])
        self._photographs = load_sample_images().images
        self._rng = np.random.default_rng(seed)
        self._side = side
        weights = np.ones(10) if chance is None else np.asarray(chance, np.float64)
        each = weights[self._labels]
        self._chances = each / each.sum()

    def draw(self) -> Scene:
        """Draws a scene of 1 to 8 digits."""
        canvas = self._background()
        boxes: list[Corners] = []
        labels: list[int] = []
        for _ in range(int(self._rng.integers(1, _MOST_OBJECTS + 1))):
            which = int(self._rng.choice(len(self._digits), p=self._chances))
            ink = self._stamp(self._digits[which])
            place = self._free_place(ink.shape, boxes)
            if place is None:
                continue
            left, top, right, bottom = place
            part = canvas[top:bottom, left:right]
            cover = np.clip(ink * 1.3, 0, 1)[..., None]
            canvas[top:bottom, left:right] = part * (1 - cover) + self._colour(float(part.mean())) * cover
            boxes.append(place)
            labels.append(int(self._labels[which]))
        return Scene(np.clip(canvas, 0, 255).astype(np.uint8), boxes, labels)

    def _background(self) -> npt.NDArray[np.float32]:
        photograph = self._photographs[self._rng.integers(len(self._photographs))]
        height, width = photograph.shape[:2]
        span = int(self._rng.integers(self._side, min(height, width) + 1))
        top, left = int(self._rng.integers(height - span + 1)), int(self._rng.integers(width - span + 1))
        crop = Image.fromarray(photograph[top : top + span, left : left + span])
        pixels = np.array(crop.resize((self._side, self._side), Image.Resampling.BILINEAR)).astype(np.float32)
        return pixels[:, ::-1].copy() if self._rng.random() < 0.5 else pixels

    def _stamp(self, digit: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
        """Gives a digit's ink, 0..1, scaled, turned and cut to what is visible of it."""
        size = int(self._rng.integers(_SMALLEST, min(_LARGEST, self._side // 2) + 1))
        image = Image.fromarray((digit * (255 / 16)).astype(np.uint8)).resize((size, size), Image.Resampling.BICUBIC)
        turn = float(self._rng.uniform(-_TURN_DEGREES, _TURN_DEGREES))
        ink = np.asarray(image.rotate(turn, Image.Resampling.BICUBIC, expand=True), np.float32) / 255
        rows, columns = np.flatnonzero((ink > _INK).any(axis=1)), np.flatnonzero((ink > _INK).any(axis=0))
        cut: npt.NDArray[np.float32] = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].astype(np.float32)
        return cut

    def _free_place(self, shape: tuple[int, ...], boxes: Sequence[Corners]) -> Corners | None:
        height, width = shape
        for _ in range(_TRIES):
            left = int(self._rng.integers(0, self._side - width))
            top = int(self._rng.integers(0, self._side - height))
            place = (left, top, left + width, top + height)
            others = np.array(boxes, np.float32).reshape(-1, 4)
            if (overlaps(np.array([place], np.float32), others) < _MOST_OVERLAP).all():
                return place
        return None

    def _colour(self, under: float) -> npt.NDArray[np.float64]:
        """Draws a colour that stands out from what lies under it."""
        colour = self._rng.uniform(0, 255, 3)
        for _ in range(_TRIES):
            if abs(float(colour.mean()) - under) > _LEAST_CONTRAST:
                break
            colour = self._rng.uniform(0, 255, 3)
        return colour


def write_voc(folder: Path, scenes: DigitScenes, count: int, split: str, name_of: Callable[[int], str] = str) -> None:
    """Writes scenes as Pascal VOC does: `JPEGImages`, `Annotations` and the list of the split in `ImageSets/Main`."""
    for part in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    stems = [f"{split}_{number:05}" for number in range(count)]
    for stem in stems:
        scene = scenes.draw()
        Image.fromarray(scene.pixels).save(folder / "JPEGImages" / f"{stem}.jpg", quality=_QUALITY)
        (folder / "Annotations" / f"{stem}.xml").write_text(_xml(f"{stem}.jpg", scene, name_of), encoding="utf-8")
    (folder / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(stems) + "\n", encoding="utf-8")


def _xml(file_name: str, scene: Scene, name_of: Callable[[int], str]) -> str:
    height, width = scene.pixels.shape[:2]
    objects = "".join(
        f"<object><name>{escape(name_of(label))}</name><difficult>0</difficult>"
        # VOC counts from 1, and the last pixel belongs to the box.
        f"<bndbox><xmin>{left + 1}</xmin><ymin>{top + 1}</ymin><xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox>"
        "</object>"
        for (left, top, right, bottom), label in zip(scene.boxes, scene.labels, strict=True)
    )
    size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
    return f"<annotation><filename>{file_name}</filename>{size}{objects}</annotation>"
