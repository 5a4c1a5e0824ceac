"""The recipe of a table (how images are placed, stored and split), and the limits of one source file."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import InvalidArgumentError, NotAnImageTableError
from ...options import named_options, whole_number
from ..model.splits import DEFAULT_SPLITS, check_splits
from .codec import DEFAULT_MAX_PIXELS
from .colours import DEFAULT_JPEG_QUALITY, DEPTHS, FULL, RESAMPLINGS, SUBSAMPLINGS
from .geometry import DRAWN_ON, RESIZES

RECIPE_PROPERTY = "lakelens.recipe"
STORES = ("jpeg", "raw_rgb", "original")
# A square of it has the pixels that one source may have by default; beyond, no decoding stays within its memory.
_LARGEST_SIZE = 10_000
_CHOICES = {
    "resize": RESIZES,
    "resample": RESAMPLINGS,
    "store": STORES,
    "subsampling": SUBSAMPLINGS,
    "boxes_drawn_on": DRAWN_ON,
}


@dataclass(frozen=True)
class Recipe:
    """How source files become rows; fixed when the table is created, so that all rows are comparable.

    Attributes:
        size: Side of the stored image in pixels.
        resize: `fit`, `crop`, `stretch` or `none`.
        resample: Filter of the scaling: `lanczos`, `bicubic`, `hamming`, `bilinear` or `box`.
        store: `jpeg` (scaled and encoded again, which is lossy), `raw_rgb` (scaled pixels) or `original` (the file).
        quality: JPEG quality, 1-100.
        subsampling: Chroma of a stored JPEG: `4:2:0`, `4:2:2` or `4:4:4`.
        splits: Fractions by split name, in order.
        split_seed: Seed of the split.
        boxes_drawn_on: What boxes of a source are drawn on: `file` (the file's pixels), `upright` (the image as it is
            shown, EXIF orientation applied) or `auto`: what the declared size shows, else `upright`.
        depth: Which samples of more than 8 bits become 0 and 255: `full` (0 and 65535; of floats 0 and 1, or 0 and
            255), `image` (each image's own smallest and largest) or two numbers.
        keep_folder_names: Whether class folders name their classes as they are called. False leaves out the number of
            `001.ak47`; None leaves it to the first ingest: out if all folders have one as Caltech-256's do.

    Examples:
        >>> recipe = lakelens.Recipe(size=224, resize="crop", store="raw_rgb")
        >>> recipe.splits
        {'train': 0.8, 'validation': 0.1, 'test': 0.1}
    """

    size: int = 299
    resize: str = "fit"
    resample: str = RESAMPLINGS[0]
    store: str = "jpeg"
    quality: int = DEFAULT_JPEG_QUALITY
    subsampling: str = SUBSAMPLINGS[0]
    splits: Mapping[str, float] = dataclasses.field(default_factory=lambda: dict(DEFAULT_SPLITS))
    split_seed: int = 0
    boxes_drawn_on: str = DRAWN_ON[0]
    depth: str | tuple[float, float] = FULL
    keep_folder_names: bool | None = None

    def __post_init__(self) -> None:
        if not _is_whole(self.size) or not 1 <= self.size <= _LARGEST_SIZE:
            raise InvalidArgumentError(
                f"size = {self.size!r}: the side of a stored image is a whole number of pixels from 1 to "
                f"{_LARGEST_SIZE}; store='original' keeps the images as they are"
            )
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise InvalidArgumentError(f"{name} = {getattr(self, name)!r} is not one of {', '.join(known)}")
        object.__setattr__(self, "depth", _checked_depth(self.depth))
        check_splits(self.splits)
        if self.keep_folder_names not in (None, False, True):
            raise InvalidArgumentError(f"keep_folder_names = {self.keep_folder_names!r}: give True or False")
        if not _is_whole(self.quality) or not 1 <= self.quality <= 100:
            raise InvalidArgumentError(f"quality = {self.quality!r}: JPEG quality is a whole number from 1 to 100")
        object.__setattr__(self, "split_seed", whole_number("split_seed", self.split_seed))

    @property
    def applied_resize(self) -> str:
        """How the sources are resized: `none` for the store `original`, whatever `resize` is."""
        return "none" if self.store == "original" else self.resize

    def as_property(self) -> str:
        """Writes the value of the table property."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def of_table(cls, configuration: Mapping[str, str] | None, location: str, **changes: Any) -> Recipe:
        """Reads the recipe from a table's properties.

        Args:
            configuration: The properties; None for a table that does not exist yet: the default recipe with `changes`.
            location: The table.
            **changes: What an ingest asks for; None leaves a field to the recipe.

        Raises:
            NotAnImageTableError: If the table has none, or one that this version of lakelens does not understand.
            InvalidArgumentError: If the table exists and an ingest asks for something else; names the first difference.
        """
        if configuration is None:
            return cls().with_changes(**changes)
        text = configuration.get(RECIPE_PROPERTY)
        if text is None:
            raise NotAnImageTableError(
                f"{location} is a Delta table without the property {RECIPE_PROPERTY}: lakelens did not create it. "
                "Ingest into another location; DeltaFeed and score read any Delta table as it is"
            )
        try:
            # Tables of before the option have names without numbers.
            found = cls(**{"keep_folder_names": False, **json.loads(text)})
        except (ValueError, TypeError) as error:
            raise NotAnImageTableError(
                f"{location}: the table property {RECIPE_PROPERTY} = {text[:300]!r} is not understood ({error})"
            ) from error
        found._require_unchanged(found.with_changes(**changes), location)
        return found

    def with_changes(self, **changes: Any) -> Recipe:
        """Returns the recipe with those of `changes` that are not None."""
        given = {name: value for name, value in changes.items() if value is not None}
        if "splits" in given:
            given["splits"] = check_splits(given["splits"])
        return dataclasses.replace(self, **given)

    def _require_unchanged(self, wanted: Recipe, location: str) -> None:
        for field in dataclasses.fields(self):
            mine, theirs = getattr(self, field.name), getattr(wanted, field.name)
            if mine != theirs:
                raise InvalidArgumentError(
                    f"{field.name} = {theirs!r}, but the rows of {location} were made with {field.name} = {mine!r}, "
                    f"and one table has one recipe. Leave {field.name} out, or ingest into another table"
                )


@dataclass(frozen=True)
class Limits:
    """Limits for one source file; a file beyond them is quarantined.

    Attributes:
        max_bytes: Largest file in bytes.
        max_pixels: Largest width x height.
        timeout_s: Longest time from reading the file to the stored bytes, in seconds.
        memory_bytes: Most memory that its decoding may take, beyond what the worker holds.

    Examples:
        >>> limits = lakelens.Limits(max_bytes=10_000_000)
        >>> limits.timeout_s
        60.0
    """

    max_bytes: int = 256 * 1024 * 1024
    max_pixels: int = DEFAULT_MAX_PIXELS
    timeout_s: float = 60.0
    memory_bytes: int = 2 * 1024**3

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
                raise InvalidArgumentError(f"limits: {field.name} = {value!r} must be a number above 0")


Recipe.__init__ = named_options(Recipe.__init__)  # type: ignore[method-assign]
Limits.__init__ = named_options(Limits.__init__)  # type: ignore[method-assign]


def _checked_depth(depth: Any) -> str | tuple[float, float]:
    if depth in DEPTHS:
        return str(depth)
    ends = list(depth) if isinstance(depth, (list, tuple)) else []
    are_numbers = all(isinstance(end, (int, float)) and math.isfinite(end) for end in ends)
    if len(ends) != 2 or not are_numbers or ends[0] >= ends[1]:
        raise InvalidArgumentError(f"depth = {depth!r}: give 'full', 'image', or two numbers, the smaller one first")
    return float(ends[0]), float(ends[1])


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
