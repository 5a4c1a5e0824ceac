# Databricks notebook source
# MAGIC %md
# MAGIC Pictures with boxes for the notebook on detection: scikit-learn's scanned digits on crops of its photographs.
# MAGIC The pixels are real and nothing is downloaded. The files are those that Pascal VOC and COCO prescribe.

# COMMAND ----------

import json

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits, load_sample_images

SHOWN = {2: "two", 4: "four", 7: "seven"}
SIDE, CELL = 160, 53  # in pixels; each of the nine cells of a scene may hold one digit


def stamp(scan, rng):
    """The ink of a digit, 0..1, scaled, turned and cut to what is visible of it."""
    size = int(rng.integers(24, CELL - 8))
    image = Image.fromarray((scan * (255 / 16)).astype("uint8")).resize((size, size), Image.Resampling.BICUBIC)
    ink = np.asarray(image.rotate(rng.uniform(-20, 20), Image.Resampling.BICUBIC, expand=True)) / 255
    rows, columns = np.flatnonzero((ink > 0.25).any(axis=1)), np.flatnonzero((ink > 0.25).any(axis=0))
    return ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1][:CELL, :CELL]


def scenes_of(count, seed, sevens=1.0, held_out=False):
    """Draws scenes: pixels, and a list of (class name, left, top, right, bottom) in pixels, half-open.

    `sevens` is how often a seven is drawn compared with another class. A scene that is `held_out` shows scans that
    no other scene shows.
    """
    rng, digits, photographs = np.random.default_rng(seed), load_digits(), load_sample_images().images
    scans = {digit: digits.images[digits.target == digit] for digit in SHOWN}
    scans = {digit: few[-45:] if held_out else few[:-45] for digit, few in scans.items()}
    chance = np.array([sevens if digit == 7 else 1.0 for digit in SHOWN])
    for _ in range(count):
        photograph = photographs[rng.integers(len(photographs))]
        top, left = (int(rng.integers(length - SIDE + 1)) for length in photograph.shape[:2])
        pixels, boxes = photograph[top : top + SIDE, left : left + SIDE].astype(float), []
        for cell in rng.permutation(9)[: rng.integers(1, 7)]:
            digit = int(rng.choice(list(SHOWN), p=chance / chance.sum()))
            ink = stamp(scans[digit][rng.integers(len(scans[digit]))], rng)
            height, width = ink.shape
            top = int(cell // 3 * CELL + rng.integers(CELL - height + 1))
            left = int(cell % 3 * CELL + rng.integers(CELL - width + 1))
            part, cover = pixels[top : top + height, left : left + width], np.clip(ink * 1.3, 0, 1)[..., None]
            colour = rng.uniform(0, 60, 3) if part.mean() > 128 else rng.uniform(195, 255, 3)
            part[:] = part * (1 - cover) + colour * cover
            boxes.append((SHOWN[digit], left, top, left + width, top + height))
        yield Image.fromarray(pixels.astype("uint8")), boxes


def write_voc(folder, split, scenes):
    """Writes scenes as Pascal VOC does: images, an XML file for each, and the list of the split."""
    images, xml, lists = (folder / name for name in ("JPEGImages", "Annotations", "ImageSets/Main"))
    for one in (images, xml, lists):
        one.mkdir(parents=True, exist_ok=True)
    names = []
    for number, (image, boxes) in enumerate(scenes):
        names.append(f"{split}_{number:05}")
        image.save(images / f"{names[-1]}.jpg", quality=92)
        objects = "".join(
            f"<object><name>{name}</name><bndbox><xmin>{left + 1}</xmin><ymin>{top + 1}</ymin>"  # VOC counts from 1
            f"<xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>"
            for name, left, top, right, bottom in boxes
        )
        size = f"<size><width>{SIDE}</width><height>{SIDE}</height><depth>3</depth></size>"
        (xml / f"{names[-1]}.xml").write_text(
            f"<annotation><filename>{names[-1]}.jpg</filename>{size}{objects}</annotation>"
        )
    (lists / f"{split}.txt").write_text("\n".join(names) + "\n")


def write_coco(folder, split, scenes):
    """Writes scenes as COCO does: a folder of images, and one JSON file with all boxes."""
    for one in (folder / split, folder / "annotations"):
        one.mkdir(parents=True, exist_ok=True)
    numbers = {name: digit for digit, name in SHOWN.items()}
    content = {"images": [], "annotations": [], "categories": [{"id": d, "name": name} for d, name in SHOWN.items()]}
    for number, (image, boxes) in enumerate(scenes):
        image.save(folder / split / f"{number:012}.jpg", quality=92)
        content["images"].append({"id": number, "file_name": f"{number:012}.jpg", "width": SIDE, "height": SIDE})
        for name, left, top, right, bottom in boxes:
            box = {"bbox": [left, top, right - left, bottom - top], "area": (right - left) * (bottom - top)}
            place = {"id": len(content["annotations"]), "image_id": number, "category_id": numbers[name]}
            content["annotations"].append({**place, **box, "iscrowd": 0})
    (folder / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))
