"""Delta tables of images for the profile, written without a JVM."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import CommitProperties, write_deltalake
from etl_pictures import encoded
from PIL import Image
from snapshots import open_snapshot
from version_tables import set_configuration

from lakelens.etl.images.recipe import RECIPE_PROPERTY
from lakelens.etl.model import schema
from lakelens.etl.model.classes import LABELS_PROPERTY
from lakelens.etl.model.splits import DEFAULT_SPLITS, split_of
from lakelens.etl.profile.data import read_numbers
from lakelens.etl.profile.findings import WARNING, find_findings
from lakelens.etl.profile.profile import with_pictures


def picture(seed, size=(96, 96)):
    """A smooth random picture of some contrasts; equal seeds look equal."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (6, 7, 3), dtype=np.uint8))
    return small.resize(size, Image.Resampling.BICUBIC)


def jpeg(image, quality=85):
    return encoded(image, quality=quality)


def image_row(name, data, number=0, *, size=(96, 96), split=None, boxes=None, stored_format="jpeg", content=None):
    """A row of an image table; the split is that of the content's hash unless it is given."""
    digest = hashlib.sha256(content or data).hexdigest()
    return {
        schema.PATH: f"file:///images/{name}/{number:05}.jpg",
        schema.IMAGE: data,
        schema.FORMAT: stored_format,
        schema.HEIGHT: size[1],
        schema.WIDTH: size[0],
        schema.LABEL: None,
        schema.LABEL_NAME: name,
        schema.ANNOTATIONS: boxes,
        schema.SPLIT: split or split_of(digest, DEFAULT_SPLITS, 0),
        schema.CONTENT_HASH: digest,
        schema.SOURCE_LENGTH: 3 * len(data),
        schema.SOURCE_MODIFIED: 0,
        schema.BATCH_ID: "batch",
    }


def box(name, xmin, ymin, xmax, ymax, difficult=False):
    return {
        "label": 0,
        "label_name": name,
        "xmin": float(xmin),
        "ymin": float(ymin),
        "xmax": float(xmax),
        "ymax": float(ymax),
        "difficult": difficult,
    }


def gathered(location, version=None, *, near_duplicates=True, samples_per_class=None, compare=None):
    """The numbers and pictures of a version, without its page."""
    snapshot = open_snapshot(location, version)
    found = read_numbers(snapshot, None if compare is None else open_snapshot(location, compare))
    return with_pictures(found, snapshot, samples_per_class, near_duplicates=near_duplicates)


def warnings_of(found):
    return [text for level, text in find_findings(found) if level == WARNING]


def write_table(location, rows, labels=None, note=None):
    """Writes rows as one version of an image table, with a note in its commit."""
    names = {row[schema.LABEL_NAME] for row in rows} - {None}
    numbers = labels if labels is not None else {name: i for i, name in enumerate(sorted(names))}
    for row in rows:
        row[schema.LABEL] = numbers.get(row[schema.LABEL_NAME])
    is_new = not (Path(location) / "_delta_log").exists()
    table = pa.Table.from_pylist(rows, schema=schema.IMAGE_TABLE)
    told = None if note is None else CommitProperties(custom_metadata={"userMetadata": note})
    write_deltalake(str(location), table, mode="append", partition_by=[schema.SPLIT], commit_properties=told)
    if is_new:
        properties = {LABELS_PROPERTY: json.dumps(numbers), RECIPE_PROPERTY: json.dumps({"size": 96})}
        set_configuration(Path(location), 0, **properties)  # delta-rs writes none but its own
    return location


def write_quarantine(location, reasons):
    rows = [
        {"path": f"file:///images/{reason}/{i}<b>.jpg", "reason": reason, "error": f"error {i} of {reason}"}
        for reason, count in reasons.items()
        for i in range(count)
    ]
    table = pa.Table.from_pylist(rows, schema=schema.QUARANTINE)
    write_deltalake(f"{location}_quarantine", table, mode="append")
