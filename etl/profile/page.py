"""The profile as one HTML page that needs nothing else; pure. `page.html` escapes every text of the table."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from ...figures import colours_of
from ...results import counted, render
from .data import TableProfile, by_size
from .findings import MEDIUM_AREA, SMALL_AREA, changes_of, find_findings


def render_page(profile: TableProfile, plots: Mapping[str, bytes]) -> str:
    """Renders the page."""
    return render(
        __package__,
        "page.html",
        profile=profile,
        plots=plots,
        findings=find_findings(profile),
        changes="" if profile.comparison is None else changes_of(profile.comparison),
        listed_classes=_listed_classes(profile),
        facts_of_images=_facts_of_images(profile),
        facts_of_boxes=_facts_of_boxes(profile),
        colours=colours_of(profile.splits),
        file_size=_bytes(profile.file_bytes),
    )


def _listed_classes(profile: TableProfile) -> pd.DataFrame:
    """Classes by size; images without a class last."""
    counts = by_size(profile.counts)
    without = profile.class_images.index.difference(counts.index)
    return pd.concat([counts, profile.class_images.loc[without]]) if profile.unit == "images" else counts


def _facts_of_boxes(profile: TableProfile) -> str:
    boxes, images = profile.boxes, int((profile.images["boxes"] > 0).sum())
    areas = boxes["width"] * boxes["height"]
    small, medium = (areas < SMALL_AREA).mean(), (areas < MEDIUM_AREA).mean()
    text = (
        f"{counted(len(boxes), 'box')} in {counted(images, 'image')}; {small:.0%} small, {medium - small:.0%} medium, "
        f"{1 - medium:.0%} large (32² and 96² pixels of the stored image)"
    )
    difficult = int(boxes["difficult"].sum())
    return text + (f"; {difficult:,} marked difficult." if difficult else ".")


def _facts_of_images(profile: TableProfile) -> dict[str, str]:
    images = profile.images
    looked = "mode" in images
    facts = {
        "size": _sizes(images, "width", "height"),
        "stored as": _shares(images["format"]),
        "modes": _shares(images["mode"]) if looked else "not looked at",
        "source files": _sizes(images, "source_width", "source_height"),
        "brightness": _brightness(images) if looked else "not looked at",
        "recipe": ", ".join(f"{key} {value}" for key, value in profile.recipe.items()),
    }
    return {name: text for name, text in facts.items() if text}


def _sizes(images: pd.DataFrame, width: str, height: str) -> str:
    sizes = images[[width, height]].set_axis(["width", "height"], axis="columns").dropna().astype(int)
    distinct = len(sizes.drop_duplicates())
    if not distinct:
        return "not recorded"
    text = f"{distinct:,} sizes, {_range(sizes)}"
    if distinct == 1:
        text = f"all {sizes['width'].iloc[0]} x {sizes['height'].iloc[0]} pixels"
    return text + (f"; not recorded of {len(images) - len(sizes):,}" if len(sizes) < len(images) else "")


def _brightness(images: pd.DataFrame) -> str:
    means = images.groupby("split", observed=True)["brightness"].mean().dropna()
    listed = ", ".join(f"{split} {mean:.2f}" for split, mean in means.items())
    return f"{listed} on average, from 0 (black) to 1 (white)" if listed else "not looked at"


def _range(sizes: pd.DataFrame) -> str:
    wide, high = (
        f"{least:,}" if least == most else f"{least:,} to {most:,}"
        for least, most in ((sizes[name].min(), sizes[name].max()) for name in ("width", "height"))
    )
    return f"{wide} pixels wide and {high} high"


def _shares(values: pd.Series) -> str:
    counts = values.value_counts()
    counts = counts[counts > 0]
    return ", ".join(f"{name} {count:,} ({count / counts.sum():.0%})" for name, count in counts.head(8).items())


def _bytes(size: int) -> str:
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} B"
