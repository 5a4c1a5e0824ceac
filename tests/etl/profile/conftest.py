"""A table that shows all that a profile finds in images."""

from __future__ import annotations

import pytest
from PIL import Image
from profile_tables import image_row, jpeg, picture, write_table


@pytest.fixture
def two(tmp_path):
    """Cats and dogs with leaks: 3 copies of train in test, one content in two classes, a plain and a broken image."""
    rows = [
        image_row(("cat", "dog")[i % 3 == 0], jpeg(picture(i)), i, split=("train", "validation", "test")[i % 3])
        for i in range(60)
    ]
    for i in range(3):
        rows.append(image_row("cat", jpeg(picture(1000 + i), 92), 100 + i, split="train"))
        rows.append(image_row("cat", jpeg(picture(1000 + i), 60), 200 + i, split="test"))
    same = jpeg(picture(2000))
    rows += [image_row(name, same, 300, split="train") for name in ("cat", "dog")]
    rows.append(image_row("cat", jpeg(Image.new("RGB", (96, 96), "red")), 400, split="train"))
    rows.append(image_row("cat", b"\xff\xd8 no more", 401, split="train"))
    return write_table(tmp_path / "two", rows)
