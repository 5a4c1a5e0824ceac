"""The samples of a profile as one PNG: a row of each class when they are few, else one picture of each."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from .data import Sample, TableProfile
from .plots import find_font, readable

_CELL, _CAPTION, _GAP, _MARGIN = 110, 18, 8, 16
_COLUMNS = 11
_MOST_ROWS_OF_CLASSES = 20
_INK, _PAPER = (51, 51, 51), (255, 255, 255)
_FONT_SIZE = 12


def draw_sheet(profile: TableProfile) -> bytes:
    """Draws the samples with the names of their classes."""
    font = ImageFont.truetype(find_font(), _FONT_SIZE)
    few = len(profile.samples) <= _MOST_ROWS_OF_CLASSES
    cells = list(_cells(profile, few))
    rows = 1 + max(row for row, _, _, _ in cells)
    columns = 1 + max(column for _, column, _, _ in cells)
    size = (_place(columns, _CELL) - _GAP + _MARGIN, _place(rows, _CELL + _CAPTION) - _GAP + _MARGIN)
    sheet = Image.new("RGB", size, _PAPER)
    draw = ImageDraw.Draw(sheet)
    for row, column, caption, sample in cells:
        left, top = _place(column, _CELL), _place(row, _CELL + _CAPTION)
        draw.text((left, top), _fitting(caption, font, columns if few else 1), _INK, font)
        picture = Image.open(io.BytesIO(sample.jpeg))
        picture.thumbnail((_CELL, _CELL))
        sheet.paste(picture, (left, top + _CAPTION))
    buffer = io.BytesIO()
    sheet.save(buffer, "PNG")
    return buffer.getvalue()


def _cells(profile: TableProfile, few: bool) -> Iterator[tuple[int, int, str, Sample]]:
    """Yields row, column, caption and sample of each picture."""
    for index, (name, samples) in enumerate(profile.samples.items()):
        if few:
            for column, sample in enumerate(samples[:_COLUMNS]):
                yield index, column, readable(name) if column == 0 else "", sample
        else:
            yield *divmod(index, _COLUMNS), readable(name), samples[0]


def _place(index: int, side: int) -> int:
    return _MARGIN + index * (side + _GAP)


def _fitting(text: str, font: Any, cells: int) -> str:
    """Cuts a caption to the width of its cells."""
    while text and font.getlength(text) > cells * (_CELL + _GAP) - _GAP:
        text = text[:-2] + "…" if len(text) > 2 else ""
    return text
