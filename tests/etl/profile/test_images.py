"""Images of a version are looked at as they are shown, compared, and sampled whatever their order."""

from __future__ import annotations

import io

import numpy as np
import pytest
from etl_pictures import encoded, oriented
from PIL import Image
from profile_tables import box, gathered, image_row, jpeg, picture, warnings_of, write_table

from lakelens.etl.images.codec import decode_source
from lakelens.etl.model import schema
from lakelens.etl.profile.figures import PLOTS
from lakelens.etl.profile.findings import find_findings

pytestmark = pytest.mark.unit


def sixteen_bits(image):
    return encoded(Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257), "PNG")


def cut_out(image):
    black = Image.new("L", image.size)
    return encoded(Image.merge("RGBA", (black, black, black, image.convert("L"))), "PNG")


def turned(image):
    return encoded(image.transpose(Image.Transpose.ROTATE_90), quality=95, exif=oriented(6))


@pytest.mark.parametrize(
    ("stored", "form"),
    [(sixteen_bits, "png"), (cut_out, "png"), (turned, "jpeg"), (jpeg, "jpeg"), (Image.Image.tobytes, "raw_rgb")],
)
def test_every_stored_form_is_looked_at_and_compared_as_it_is_shown(tmp_path, stored, form):
    size, splits = (120, 90), ("train", "test")
    options = {"size": size, "stored_format": form}
    rows = [image_row("a", stored(picture(i, size)), i, split=splits[i % 2], **options) for i in range(4)]
    shown = picture(0, size) if form == "raw_rgb" else decode_source(rows[0][schema.IMAGE]).image
    rows.append(image_row("a", jpeg(shown, 95), 9, split="test"))
    found = gathered(write_table(tmp_path / "t", rows))
    similar = found.similar
    assert (similar.compared, similar.plain, similar.unreadable, len(found.samples["a"])) == (5, 0, 0, 5)
    assert similar.near.to_numpy().tolist() == [[0, 1], [1, 0]]


def test_brightness_is_the_mean_grey(tmp_path):
    rows = [image_row("a", jpeg(Image.new("RGB", (96, 96), (grey,) * 3)), grey) for grey in (0, 51, 255)]
    rows.append(image_row("a", b"\xff\xd8 no more", 300))
    brightness = gathered(write_table(tmp_path / "t", rows)).images["brightness"]
    assert sorted(brightness.fillna(-1)) == pytest.approx([-1, 0, 0.2, 1], abs=0.01)


def test_boxes_are_drawn_where_they_are(tmp_path):
    data = jpeg(Image.new("RGB", (100, 100), "white"), 95)
    row = image_row("a", data, size=(100, 100), boxes=[box("a", 20, 40, 80, 60)])
    found = gathered(write_table(tmp_path / "t", [row]))
    pixels = np.asarray(Image.open(io.BytesIO(found.samples["a"][0].jpeg)).convert("RGB")).astype(int)
    marked = pixels[..., 2] < 160
    rows, columns = np.flatnonzero(marked.any(axis=1)), np.flatnonzero(marked.any(axis=0))
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (40, 59, 20, 79)


@pytest.mark.parametrize("boxes", [None, [box("a", 1, 1, 20, 20)]])
def test_samples_do_not_depend_on_the_order_of_the_rows(tmp_path, boxes):
    name = None if boxes else "a"
    rows = [image_row(name, jpeg(picture(i)), i, split="train", boxes=boxes) for i in range(30)]
    paths = []
    for place, ordered in (("one", rows), ("other", rows[::-1])):
        location = write_table(tmp_path / place, [dict(row) for row in ordered])
        for count in (None, 3):
            samples = gathered(location, near_duplicates=False, samples_per_class=count).samples["a"]
            paths.append({sample.path for sample in samples})
    assert paths[:2] == paths[2:]
    assert [len(found) for found in paths[:2]] == [12, 3]


def test_images_that_look_alike_are_counted_across_and_within_splits_and_shown(two):
    similar = gathered(two).similar
    assert (similar.compared, similar.plain, similar.unreadable) == (68, 1, 1)
    assert similar.near.to_numpy().tolist() == [[2, 0, 3], [0, 0, 0], [3, 0, 0]]
    assert len(similar.pairs) == 3
    for one, other, distance in similar.pairs:
        assert (one.split, other.split) == ("train", "test")
        assert int(one.path[-9:-4]) + 100 == int(other.path[-9:-4])
        assert distance <= similar.max_distance


def test_alike_in_validation_and_test_is_a_warning_too(tmp_path):
    rows = [image_row("a", jpeg(picture(i)), i, split="train") for i in range(3)]
    rows += [image_row("a", jpeg(picture(9), q), q, split=split) for q, split in ((90, "validation"), (60, "test"))]
    found = warnings_of(gathered(write_table(tmp_path / "t", rows)))
    assert "1 image of test (100.0%) nearly equal to one of validation." in found


def test_one_split_has_its_own_near_duplicates_and_no_good_news_of_another(tmp_path):
    rows = [image_row("a", jpeg(picture(i // 2), 90 - i % 2 * 20), i, split="train") for i in range(8)]
    found = gathered(write_table(tmp_path / "t", rows))
    assert found.similar.near.to_dict() == {"train": {"train": 8}}
    assert PLOTS["near_duplicates"](found) is not None
    assert not any("another split" in finding.text for finding in find_findings(found))
