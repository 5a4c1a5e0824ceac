"""Figures can be read whatever the classes and splits, and are drawn only if there is something to show."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pandas as pd
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from profile_tables import gathered, jpeg, picture

from lakelens.etl.profile.figures import PLOTS, draw_plots
from lakelens.figures import colours_of

pytestmark = pytest.mark.unit


def drawn(found, name):
    figure = PLOTS[name](found)
    figure.canvas.draw()
    return figure


def shown(labels):
    return [label for label in labels if label.get_visible() and label.get_text()]


def test_a_plot_of_one_class_that_dwarfs_the_others_has_ticks_that_can_be_read(two):
    counts = {"big": 1_000_000, **{f"class {number}": 40 for number in range(256)}}
    found = replace(gathered(two, near_duplicates=False), class_images=pd.DataFrame({"train": counts}))
    for axis in drawn(found, "class_distribution").axes:
        ends = [label.get_window_extent() for label in shown(axis.get_xticklabels())]
        assert all(one.x1 < other.x0 for one, other in itertools.pairwise(ends))


def test_plots_of_ten_folds_distinguish_them(two):
    folds = [f"fold-{number}-of-all-ten" for number in range(10)]
    found = gathered(two)
    near = pd.DataFrame(0, folds, folds)
    found = replace(
        found, class_images=pd.DataFrame(90, ["cat", "dog"], folds), similar=replace(found.similar, near=near)
    )
    assert len(set(colours_of(folds).values())) == 10
    (legend,) = drawn(found, "class_distribution").legends
    assert legend.get_window_extent().x0 >= 0
    for axis in drawn(found, "splits").axes[:1] + drawn(found, "near_duplicates").axes:
        assert all(label.get_rotation() == 30 for label in shown(axis.get_xticklabels()))


def test_unknown_numbers_have_no_plot(tmp_path):
    write_deltalake(str(tmp_path / "t"), pa.table({"image": [jpeg(picture(i)) for i in range(3)]}))
    assert draw_plots(gathered(tmp_path / "t", near_duplicates=False)) == {}
    assert draw_plots(gathered(tmp_path / "t")).keys() >= {"image_sizes", "brightness", "near_duplicates"}
