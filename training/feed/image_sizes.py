"""The sizes of a feed's images, before any is decoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, suppress

import numpy as np
import pyarrow as pa

from ...errors import BadRowError, ImageError, InvalidArgumentError
from ...etl.images.stored_image import StoredImage, size_of
from ...etl.model.schema import HEIGHT, WIDTH
from ...log.data_files import open_stored, stored_columns
from .plan.feed_plan import FeedPlan, naming_file
from .plan_builder import of_files
from .reading.row_groups import FileLayout, OpenRowGroup, kept_rows

# Rows of each file that are looked at for the size of the images, in case the first ones are bad.
_SIZED_ROWS = 16

Size = tuple[int, int]


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
    """Finds the height and width that all images of some plans of one table have.

    The table's own columns have them: they are read for every row, the images are not.
    """
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
                f"give the one that all are resized to, such as image_size={first}"
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
