"""How a plan's rows become images: the columns that are read, size and decoder, and what happens to bad rows."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ...errors import BadRowError, InvalidArgumentError
from ...etl.images.geometry import letterbox
from ...etl.images.stored_image import PixelDecoder
from .plan.feed_plan import FeedPlan
from .read_options import ImageOutput

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
                f"{self.plan.name}: all rows have null in column {self.plan.columns.boxes!r}: nobody annotated them. "
                "Ingest with layout voc, coco or manifest, which write an empty list for an image without objects"
            )

    def refuse(self, origin: Sequence[int], reason: str) -> None:
        """Handles a bad row as `bad_rows` says: raises, or counts it and logs it."""
        message = f"{self.plan.describe_row(*origin)} {reason}"
        if self.output.bad_rows == "error":
            raise BadRowError(f"{message}; repair the row, or feed without it: bad_rows='skip'")
        self.skipped.add(message)
        logger.warning("skipped: %s", message)
