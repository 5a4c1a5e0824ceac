"""How a plan's rows become images: columns, sizes and decoder, bad rows, and the sizes of images before a decoding."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa

from ...errors import BadRowError, ImageError, InvalidArgumentError
from ...etl.images.geometry import letterbox
from ...etl.images.stored_image import PixelDecoder, StoredImage, size_of
from ...etl.model.schema import HEIGHT, WIDTH
from ...log.data_files import open_stored, stored_columns
from .plan.feed_plan import FeedPlan, naming_file
from .plan_builder import of_files
from .read_options import ImageOutput
from .reading import FileLayout, OpenRowGroup, kept_rows

logger = logging.getLogger(__name__)

_REMEMBERED_ROWS = 100


@dataclass
class SkippedRows:
    """The bad rows that a feed has given weight 0 to, in this process."""

    count: int = 0  # How many, each time that they were met
    first: list[str] = field(default_factory=list)  # What the first of them were, with the reason

    def add(self, message: str) -> None:
        """Counts one row."""
        self.count += 1
        if len(self.first) < _REMEMBERED_ROWS:
            self.first.append(message)


@dataclass
class LeftOutBoxes:
    """The boxes and rows that a feed of boxes has left out, in this process, each time that they were read."""

    read: int = 0  # Boxes read
    difficult: int = 0  # Those marked as difficult, or of a crowd
    small: int = 0  # Those narrower or lower than a pixel of the image that comes out
    beyond: int = 0  # Those beyond `box_limit`, the smallest of their image
    annotated: int = 0  # Rows with boxes, or with an empty list of them
    unannotated: int = 0  # Rows whose boxes are null: images that were not annotated


@dataclass(frozen=True)
class ImagePlan:
    """How the rows of a plan become images, labels and boxes."""

    plan: FeedPlan  # The rows
    output: ImageOutput  # The requested form
    size: tuple[int, int]  # Height and width in pixels of every image that comes out
    skipped: SkippedRows  # Where skipped rows are counted
    left_out: LeftOutBoxes  # Where other boxes are counted

    def __post_init__(self) -> None:
        wanted, column = self.output.box_classes, self.plan.columns.boxes
        if wanted is not None and column not in self.plan.schema:
            raise InvalidArgumentError(f"box_classes={wanted}: {self.plan.location} has no column {column!r} of boxes")

    @cached_property
    def decoder(self) -> PixelDecoder:
        """Decodes one image."""
        return PixelDecoder(resize=self.output.image_size is not None, letterbox=self.output.letterbox)

    @property
    def has_boxes(self) -> bool:
        """Whether boxes come out."""
        return self.output.box_classes is not None

    def placement(self, height: int, width: int) -> tuple[float, float, float, float]:
        """Returns (scale_x, scale_y, offset_x, offset_y) from an image of this size to the resulting image."""
        if not self.decoder.letterbox:
            return self.size[1] / width, self.size[0] / height, 0.0, 0.0
        place = letterbox(width, height, self.size[1], self.size[0])
        return place.scale_x, place.scale_y, place.offset_x, place.offset_y

    @property
    def columns(self) -> list[str]:
        """The columns that are read where images are decoded."""
        columns = self.plan.columns
        sizes = columns.sizes if self.has_boxes else ()
        return list(dict.fromkeys([*columns.of_image(self.plan.image_column), *self.small_columns, *sizes]))

    @property
    def small_columns(self) -> list[str]:
        """The columns that are read where images are decoded already: label and boxes."""
        boxes = self.plan.columns.boxes if self.has_boxes else None
        return list(dict.fromkeys(name for name in (self.plan.columns.label, boxes) if name is not None))

    def undecodable(self, reason: str) -> str:
        """Says of a row that it does not decode."""
        return f"does not decode to {self.size[0]} x {self.size[1]} pixels: {reason}"

    def leave_unannotated_out(self) -> None:
        """Counts a row whose boxes are null; raises once an epoch had no other rows."""
        self.left_out.unannotated += 1
        if not self.left_out.annotated and self.left_out.unannotated >= self.plan.rows:
            raise BadRowError(
                f"{self.plan.name}: all rows have null in column {self.plan.columns.boxes!r}: they are not annotated. "
                "Ingest with layout voc, coco or manifest, which write an empty list for an image without objects"
            )

    def refuse(self, origin: Sequence[int], reason: str) -> None:
        """Handles a bad row as `bad_rows` says: raises, or counts it and logs it."""
        message = f"{self.plan.describe_row(*origin)} {reason}"
        if self.output.bad_rows == "error":
            raise BadRowError(f"{message}; repair the row, or feed without it: bad_rows='skip'")
        self.skipped.add(message)
        logger.warning("skipped: %s", message)


# Rows of each file that are looked at for the size of the images, in case the first ones are bad.
_SIZED_ROWS = 16

Size = tuple[int, int]


def known_size(image: StoredImage) -> Size:
    """Gives an image's height and width from the table, else from the image."""
    return (image.height, image.width) if image.height and image.width else size_of(image)


def size_of_first_image(plan: FeedPlan) -> Size:
    """Finds the height and width of the first image of a plan's rows that has them."""
    looked_at = 0
    for file in np.flatnonzero(plan.files.rows).tolist():
        with naming_file(plan, file):
            for image in _first_images(plan, file):
                looked_at += 1
                with suppress(ImageError):
                    return size_of(image)
    raise BadRowError(
        f"{plan.name}: none of the {looked_at} rows that were looked at, the first {_SIZED_ROWS} of "
        f"each file, tells the size of its image in column {plan.image_column!r}; give image_size, or leave such rows "
        "out with filters"
    )


def _first_images(plan: FeedPlan, file: int) -> Iterator[StoredImage]:
    """Reads the first images of a file that the plan's filters keep, one at a time."""
    columns = plan.columns.of_image(plan.image_column)
    layout = FileLayout.of(plan, file)
    left = _SIZED_ROWS
    for row_group, count in enumerate(layout.rows):
        kept = range(min(count, left)) if layout.kept is None else layout.kept[row_group][:left].tolist()
        left -= len(kept)
        if not kept:
            continue
        with closing(OpenRowGroup(plan, file, layout, row_group, columns)) as stored:
            for row in kept:
                group = stored.read(row, row + 1)
                yield StoredImage(group.bytes_at(columns[0], 0), *(group.values(name)[0] for name in columns[1:]))


def size_of_all_images(plans: Sequence[FeedPlan]) -> Size:
    """Finds the height and width that all images of some plans of one table have, in the table's own columns."""
    first = size_of_first_image(plans[0])
    for plan in plans:
        found = of_files(plan, lambda file, plan=plan: _sizes_in(plan, file), np.arange(len(plan.files)))  # type: ignore[misc]
        for file, sizes in enumerate(found):
            others = sizes - {first}
            if not others:
                continue
            height, width = min(others, key=str)
            problem = (
                f"has an image of {height} x {width} pixels, the first one is {first[0]} x {first[1]}"
                if height and width
                else f"has rows without the size of their image (columns {HEIGHT} and {WIDTH})"
            )
            raise InvalidArgumentError(
                f"{plan.name}: {plan.file_location(file)} {problem}; a model takes images of one size: "
                f"give the size to which all are resized, such as image_size={first}"
            )
    return first


def _sizes_in(plan: FeedPlan, file: int) -> set[tuple[int | None, int | None]]:
    """Lists the different heights and widths of the rows of a file."""
    with open_stored(plan.snapshot, file) as parquet:
        columns = list(stored_columns(plan.snapshot, file, plan.columns.sizes, parquet.metadata).values())
        if not columns or len(columns) < len(plan.columns.sizes):
            return {(None, None)}
        kept = enumerate(kept_rows(plan, file, parquet))
        read = pa.concat_tables(parquet.read_row_group(i, columns).take(rows) for i, rows in kept)
    different = read.group_by(columns).aggregate([])
    return set(zip(*(different.column(name).to_pylist() for name in columns), strict=True))
