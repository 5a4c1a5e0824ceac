"""Scenes as files: as Pascal VOC and as COCO write them, so that an ingest reads them with its own parsers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from PIL import Image

from lakelens.jobs.demo.digit_scenes import DigitScenes, Scene

_QUALITY = 92


def write_voc(folder: Path, scenes: DigitScenes, count: int, split: str, name_of: Callable[[int], str] = str) -> None:
    """Writes scenes as Pascal VOC does: `JPEGImages`, `Annotations` and the list of the split in `ImageSets/Main`.

    Args:
        folder: The source; it may hold scenes of other splits.
        scenes: Draws them.
        count: How many.
        split: `train`, `val` or `test`.
        name_of: Name of a digit's class.
    """
    for part in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    stems = [f"{split}_{number:05}" for number in range(count)]
    for stem in stems:
        scene = scenes.draw()
        _save(scene, folder / "JPEGImages" / f"{stem}.jpg")
        (folder / "Annotations" / f"{stem}.xml").write_text(_xml(f"{stem}.jpg", scene, name_of), encoding="utf-8")
    (folder / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(stems) + "\n", encoding="utf-8")


def write_coco(folder: Path, scenes: DigitScenes, count: int, split: str, name_of: Callable[[int], str] = str) -> None:
    """Writes scenes as COCO does: a folder of images named as the split, and `annotations/instances_<split>.json`.

    Args:
        folder: The source; it may hold scenes of other splits.
        scenes: Draws them.
        count: How many.
        split: `train`, `val` or `test`.
        name_of: Name of a digit's class.
    """
    for part in (split, "annotations"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    images: list[dict[str, Any]] = []
    objects: list[dict[str, Any]] = []
    for number in range(count):
        scene, name = scenes.draw(), f"{number:012}.jpg"
        _save(scene, folder / split / name)
        height, width = scene.pixels.shape[:2]
        images.append({"id": number, "file_name": name, "width": width, "height": height})
        for (left, top, right, bottom), label in zip(scene.boxes, scene.labels, strict=True):
            box = [left, top, right - left, bottom - top]
            entry = {"id": len(objects), "image_id": number, "category_id": label, "bbox": box, "iscrowd": 0}
            objects.append({**entry, "area": box[2] * box[3]})
    used = sorted({entry["category_id"] for entry in objects})
    categories = [{"id": label, "name": name_of(label)} for label in used]
    content = {"images": images, "annotations": objects, "categories": categories}
    (folder / "annotations" / f"instances_{split}.json").write_text(json.dumps(content), encoding="utf-8")


def _save(scene: Scene, path: Path) -> None:
    Image.fromarray(scene.pixels).save(path, quality=_QUALITY)


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
