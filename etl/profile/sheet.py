"""The samples of a profile as one PNG: a row of each class when they are few, else one picture of each."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from .data import Sample, TableProfile
from .names import drawable, find_font, readable_names

_CELL, _CAPTION, _GAP, _MARGIN = 110, 18, 8, 16
_COLUMNS = 11
_MOST_ROWS_OF_CLASSES = 20
_INK, _PAPER = (51, 51, 51), (255, 255, 255)
_FONT_SIZE = 12
_LONGEST_CAPTION = 160


def draw_sheet(profile: TableProfile) -> bytes:
    """Draws the samples with the names of their classes."""
    font = ImageFont.truetype(find_font(), _FONT_SIZE)
    few = len(profile.samples) <= _MOST_ROWS_OF_CLASSES
    cells = list(_cells(profile, few))
    rows = 1 + max(row for row, _, _, _ in cells)
    columns = 1 + max(column for _, column, _, _ in cells)
    names = list(profile.samples)
    captions = dict(zip(names, _fitting(names, font, columns if few else 1), strict=True))
    size = (_place(columns, _CELL) - _GAP + _MARGIN, _place(rows, _CELL + _CAPTION) - _GAP + _MARGIN)
    sheet = Image.new("RGB", size, _PAPER)
    draw = ImageDraw.Draw(sheet)
    for row, column, name, sample in cells:
        left, top = _place(column, _CELL), _place(row, _CELL + _CAPTION)
        if not few or column == 0:
            draw.text((left, top), captions[name], _INK, font)
        picture = Image.open(io.BytesIO(sample.jpeg))
        picture.thumbnail((_CELL, _CELL))
        sheet.paste(picture, (left, top + _CAPTION))
    buffer = io.BytesIO()
    sheet.save(buffer, "PNG")
    return buffer.getvalue()


def _cells(profile: TableProfile, few: bool) -> Iterator[tuple[int, int, str | None, Sample]]:
    """Yields row, column, class and sample of each picture."""
    for index, (name, samples) in enumerate(profile.samples.items()):
        if few:
            for column, sample in enumerate(samples[:_COLUMNS]):
                yield index, column, name, sample
        else:
            yield *divmod(index, _COLUMNS), name, samples[0]


def _place(index: int, side: int) -> int:
    return _MARGIN + index * (side + _GAP)


def _fitting(names: Sequence[str | None], font: Any, cells: int) -> list[str]:
    """Shortens names together until the widest one fits above so many cells."""
    most = cells * (_CELL + _GAP) - _GAP
    length = max(2, min(_LONGEST_CAPTION, max(len(drawable(name)) for name in names)))
    texts = readable_names(names, length)
    while length > 2 and max(map(font.getlength, texts)) > most:
        length -= 1
        texts = readable_names(names, length)
    return texts
