"""The page needs nothing, runs nothing and words its numbers as they are."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from PIL import Image
from profile_tables import box, gathered, image_row, jpeg, picture, write_quarantine, write_table

from lakelens.etl.model import schema
from lakelens.etl.profile.figures import PLOTS
from lakelens.etl.profile.page import render_page
from lakelens.etl.profile.profile import profile

pytestmark = pytest.mark.unit

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "$\\frac{a}{b}$",
    "$",
    "{{ 7 * 7 }}",
    "锚杆 & é",
    "a" * 300,
]


class Page(HTMLParser):
    """Collects the tags and addresses of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.addresses, self.handlers, self.open = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        self.addresses += [value for name, value in attrs if name in ("src", "href", "action", "data", "poster")]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_stands_alone_and_runs_nothing(tmp_path):
    rows = [image_row(name, jpeg(picture(i)), i, boxes=[box(name, 0, 0, 9, 9)]) for i, name in enumerate(HOSTILE * 3)]
    for i, row in enumerate(rows):
        row[schema.PATH] = f'file:///x/{i}"><script>alert(1)</script>.jpg'
    rows += [{**rows[0], schema.LABEL_NAME: HOSTILE[1]}, {**rows[1], schema.SPLIT: "<i>odd</i>"}]
    location = write_table(tmp_path / "<b>table", rows)
    write_quarantine(location, {"<i>reason</i>": 2})
    write_table(location, [image_row("<u>new</u>", jpeg(picture(99)))])
    result = profile(location, out=tmp_path / "out", compare=0)
    text = result.page.read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert page.handlers == []
    assert not {"script", "iframe", "object", "link", "b>table", "i>reason", "u"} & set(page.tags)
    assert "<i>odd" not in text
    assert "default-src 'none'" in text
    assert all(re.match(r"#\w+$|data:image/(png|jpeg);base64,", address) for address in page.addresses)
    assert all(part in text for part in ("&lt;script&gt;alert(1)&lt;/script&gt;", "锚杆 &amp; é", "{{ 7 * 7 }}"))
    sections = ("look", "comparison", "classes", "splits", "images", "boxes", "samples", "duplicates", "quarantine")
    assert re.findall(r'<section id="(\w+)"', text) == list(sections) == re.findall(r'href="#(\w+)"', text)
    for path in result.plots:
        with Image.open(path) as image:
            image.load()
            assert image.format == "PNG"
    files = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert files == sorted(["profile.html", *(path.name for path in result.plots)])
    assert {"class_distribution.png", "splits.png", "quarantine.png"} <= set(files)


def test_many_classes_are_all_listed_and_stay_a_page_that_opens(tmp_path):
    rows = [image_row(f"class {c:03}", jpeg(picture(c * 10 + i)), i) for c in range(257) for i in range(1 + c % 2)]
    found = gathered(write_table(tmp_path / "many", rows), near_duplicates=False)
    text = render_page(found, {})
    assert all(f"class {c:03}" in text for c in range(257))
    assert len(found.samples) == 257
    assert len(text) < 8_000_000


def test_recorded_sizes_of_images_and_source_files_are_shown(tmp_path):
    rows = [image_row("a", jpeg(picture(i)), i, size=(90 + i, 80)) for i in range(20)]
    for row in rows[:4]:
        row[schema.WIDTH] = row[schema.HEIGHT] = None
    for row, (width, height) in zip(rows, [(20, 40), (20, 40), (30, 30)], strict=False):
        row[schema.SOURCE] = {"width": width, "height": height, "orientation": 6, "resize": "fit"}
    found = gathered(write_table(tmp_path / "some", rows), near_duplicates=False)
    text = render_page(found, {})
    assert "16 sizes, 94 to 109 pixels wide and 80 high; not recorded of 4" in text
    sizes = "2 sizes, 20 to 30 pixels wide and 30 to 40 high; not recorded of 17"
    assert f"<dt>source files</dt><dd>{sizes}</dd>" in text
    assert PLOTS["source_sizes"](found) is not None
    found = gathered(write_table(tmp_path / "none", rows[:4]), near_duplicates=False)
    text = render_page(found, {})
    assert "<dt>size</dt><dd>not recorded</dd>" in text
    assert 'id="boxes"' not in text  # of which there are none
