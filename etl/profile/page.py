"""The profile as one HTML page that needs nothing else; pure. Every text of the table goes through `escape`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from ... import html_page
from .data import Brightness, ClassRows, NearDuplicates, Sample, SourceSizes, TableProfile
from .findings import changes_of, counted, find_findings, noun_of
from .plots import colours_of

_SIGNS = {"warning": "▲", "note": "●", "good": "✓"}
_EXAMPLE_PATHS = 4


def render_page(profile: TableProfile, plots: Mapping[str, bytes]) -> str:
    """Renders the page.

    Args:
        profile: The numbers.
        plots: PNG files by name, as `profile_plots.draw_plots` gives them.
    """
    sections = [
        ("look", "Look at first", _findings(profile)),
        ("comparison", "Compared", _comparison(profile, plots)),
        ("classes", "Classes", _classes(profile, plots)),
        ("splits", "Splits", _splits(profile, plots)),
        ("images", "Images", _images(profile, plots)),
        ("boxes", "Boxes", _boxes(profile, plots)),
        ("samples", "Samples", _samples(profile)),
        ("duplicates", "Near-duplicates", _duplicates(profile, plots)),
        ("quarantine", "Quarantine", _quarantine(profile, plots)),
    ]
    name = profile.location.rstrip("/").rpartition("/")[2] or profile.location
    return html_page.render_page(
        f"{name} · version {profile.version}",
        _where(profile),
        _facts(profile),
        sections,
        f"Made by lakelens from version {profile.version} alone; the quarantine is as it is now.",
    )


def _where(profile: TableProfile) -> str:
    when = "" if profile.timestamp is None else f" · committed {profile.timestamp:%Y-%m-%d %H:%M} UTC"
    return profile.location + when


def _facts(profile: TableProfile) -> dict[str, str]:
    filled = len([entry for entry in profile.named_classes if entry.total or entry.total_boxes])
    facts = {
        noun_of(profile.rows, "image"): f"{profile.rows:,}",
        noun_of(filled, "class"): f"{filled:,}",
        noun_of(len(profile.splits), "split"): f"{len(profile.splits):,}",
        f"in {counted(profile.files, 'file')}": _bytes(profile.stored_bytes),
    }
    if profile.boxes is not None:
        facts[noun_of(profile.boxes.total, "box")] = f"{profile.boxes.total:,}"
    if profile.quarantine is not None:
        facts["in quarantine"] = f"{profile.quarantine.total:,}"
    return facts


def _findings(profile: TableProfile) -> str:
    items = (
        f'<li class="{found.level}"><i>{_SIGNS[found.level]}</i>{escape(found.text)}</li>'
        for found in find_findings(profile)
    )
    return f'<ul class="findings">{"".join(items)}</ul>'


def _classes(profile: TableProfile, plots: Mapping[str, bytes]) -> str:
    if not profile.named_classes:
        return "<p>No image of this version has a class.</p>"
    entries = sorted(profile.classes, key=lambda entry: (entry.name is None, -profile.count(entry), str(entry.name)))
    table = _class_table(profile, entries)
    return _plot(plots, "class_distribution", f"{profile.unit} of each class, by split") + table


def _class_table(profile: TableProfile, entries: Sequence[ClassRows]) -> str:
    colours = colours_of(profile.splits)
    if profile.unit == "boxes":
        entries = [entry for entry in entries if entry.name is not None]
    largest = max((profile.count(entry) for entry in entries), default=0) or 1
    has_both = profile.unit == "images" and any(entry.boxes for entry in entries)
    heads = ["".join(f"<th>{escape(split)}</th>" for split in profile.splits)]
    heads += [f"<th>{profile.unit}</th>"] + (["<th>boxes</th>"] if has_both else [])
    key = "".join(
        f'<span class="key" style="background:{colours[split]}"></span>{escape(split)}' for split in profile.splits
    )
    rows = "".join(_class_row(profile, entry, colours, largest, has_both) for entry in entries)
    table = (
        f'<table><thead><tr><th class="l">class</th><th>number</th>{"".join(heads)}<th class="l">{key}</th></tr>'
        f"</thead><tbody>{rows}</tbody></table>"
    )
    return f'<div class="scroll">{table}</div>' if len(entries) > 20 else table


def _class_row(
    profile: TableProfile, entry: ClassRows, colours: Mapping[str, str], largest: int, has_both: bool
) -> str:
    cells = []
    counts, total = profile.counts(entry), profile.count(entry)
    for split in profile.splits:
        rows = counts.get(split, 0)
        cells.append('<td class="zero">0</td>' if rows == 0 and total else f"<td>{rows:,}</td>")
    parts = "".join(
        f'<span style="width:{100 * counts.get(split, 0) / largest:.2f}%;background:{colours[split]}"></span>'
        for split in profile.splits
        if counts.get(split, 0)
    )
    boxes = f"<td>{entry.total_boxes:,}</td>" if has_both else ""
    name = "<i>no class</i>" if entry.name is None else escape(entry.name)
    number = "" if entry.number is None else str(entry.number)
    return (
        f'<tr><td class="l">{name}</td><td>{number}</td>{"".join(cells)}<td>{total:,}</td>{boxes}'
        f'<td class="bar"><div class="track">{parts}</div></td></tr>'
    )


def _splits(profile: TableProfile, plots: Mapping[str, bytes]) -> str:
    if len(profile.splits) < 2:
        only = profile.splits[0] if profile.splits else "none"
        return f"<p>All images are in one split: {escape(only)}.</p>" if profile.rows else ""
    return _plot(plots, "splits", "Images of each split, and its share in each class")


def _images(profile: TableProfile, plots: Mapping[str, bytes]) -> str:
    if not profile.rows:
        return "<p>This version has no rows.</p>"
    sizes = profile.sizes
    if sizes.distinct == 1:
        (width, height), _ = sizes.common[0]
        size = f"all {width} x {height} pixels"
    elif sizes.distinct:
        size = f"{sizes.distinct:,} sizes, {_range(*sizes.widths)} pixels wide and {_range(*sizes.heights)} high"
    else:
        size = "not recorded"
    if 0 < sizes.known < profile.rows:
        size += f"; not recorded of {profile.rows - sizes.known:,}"
    facts = [
        ("size", size),
        ("stored as", _shares(sizes.formats)),
        ("modes", _shares(sizes.modes) or "not looked at"),
    ]
    facts += [("source files", _source(sizes.source)), ("brightness", _brightness(sizes.brightness))]
    facts += (
        [("recipe", ", ".join(f"{key} {value}" for key, value in profile.recipe.items()))] if profile.recipe else []
    )
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts if value)
    return (
        f"<dl>{listed}</dl>"
        + _plot(plots, "image_sizes", "Sizes of images and files")
        + _plot(plots, "source_sizes", "Widths, heights and aspect ratios of the source files")
        + _plot(plots, "brightness", "Brightness of the images of each split")
    )


def _source(source: SourceSizes | None) -> str:
    if source is None:
        return "not looked at: no disk of this machine has them as they were"
    (narrow, wide), (low, high) = source.width_range, source.height_range
    text = f"{_range(narrow, wide)} pixels wide and {_range(low, high)} high"
    if source.files < source.looked_for:
        return f"{text}, of {source.files:,} that could be read among {source.looked_for:,}"
    return f"{text}, of {counted(source.files, 'file')}"


def _brightness(brightness: Brightness | None) -> str:
    if brightness is None:
        return "not looked at"
    means = ", ".join(f"{split} {mean:.2f}" for split, mean in brightness.mean.items())
    return f"{means} in the mean, from 0 (black) to 1 (white)"


def _range(least: int, most: int) -> str:
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _comparison(profile: TableProfile, plots: Mapping[str, bytes]) -> str:
    found = profile.comparison
    if found is None:
        return ""
    when = "" if found.timestamp is None else f" of {found.timestamp:%Y-%m-%d %H:%M} UTC"
    sentence = (
        f"Version {found.version}{when} has {counted(found.rows, 'image')}, version {profile.version} "
        f"{counted(profile.rows, 'image')}. {changes_of(found)}"
    )
    rows = [
        (name, f"{before:,}", f"{after:,}", f"{after - before:+,}")
        for name, (before, after) in found.classes.items()
        if before != after
    ]
    head = [("class", True), (f"version {found.version}", False), (f"version {profile.version}", False), ("", False)]
    table = html_page.table_tag(head, rows) if rows else "<p>Every class has as many images as it had.</p>"
    return f"<p>{escape(sentence)}</p>{_plot(plots, 'comparison', 'Classes of other sizes, by version')}{table}"


def _boxes(profile: TableProfile, plots: Mapping[str, bytes]) -> str:
    boxes = profile.boxes
    if boxes is None:
        return ""
    parts = [
        f"{counted(boxes.total, 'box')} in {counted(boxes.images, 'image')}",
        f"{boxes.small / boxes.total:.0%} small, {boxes.medium / boxes.total:.0%} medium, "
        f"{boxes.large / boxes.total:.0%} large (32² and 96² pixels of the stored image)",
    ]
    if boxes.difficult:
        parts.append(f"{boxes.difficult:,} marked difficult")
    return f"<p>{escape('; '.join(parts))}.</p>" + _plot(plots, "box_sizes", "Sizes, shapes and numbers of boxes")


def _samples(profile: TableProfile) -> str:
    if not profile.samples:
        return ""
    thumb, card = ("66px", "240px") if len(profile.samples) > 6 else ("150px", "100%")
    if profile.unit == "boxes" and len(profile.samples) <= 24:
        thumb, card = "132px", "470px"
    shown = len(profile.samples)
    note = f"<p>{shown:,} of {shown + profile.hidden_classes:,} classes: the largest and the smallest.</p>"
    note = note if profile.hidden_classes else ""
    totals = {entry.name: profile.count(entry) for entry in profile.classes}
    cards = "".join(
        f'<div class="card"><h3>{"no class" if name is None else escape(name)} '
        f"<small>{totals.get(name, 0):,}</small></h3>"
        f'<div class="thumbs">{"".join(_thumbnail(sample) for sample in samples)}</div></div>'
        for name, samples in profile.samples.items()
    )
    return f'{note}<div class="cards" style="--card:{card};--thumb:{thumb}">{cards}</div>'


def _duplicates(profile: TableProfile, plots: Mapping[str, bytes]) -> str:
    duplicates = profile.duplicates
    body = "" if duplicates is None else _near(profile, duplicates, plots)
    if profile.conflict_count:
        items = "".join(
            f"<li>{escape(' and '.join(conflict.classes))}: {_codes(conflict.paths)}</li>"
            for conflict in profile.conflicts
        )
        more = profile.conflict_count - len(profile.conflicts)
        tail = f"<p>and {more:,} more.</p>" if more else ""
        body += f"<h3>The same bytes in several classes: {profile.conflict_count:,}</h3><ul>{items}</ul>{tail}"
    return body


def _near(profile: TableProfile, duplicates: NearDuplicates, plots: Mapping[str, bytes]) -> str:
    plain = f"; {duplicates.plain:,} of nearly one colour were left out" if duplicates.plain else ""
    text = (
        f"{counted(duplicates.compared, 'image')} compared by a perceptual hash: two look alike when at most "
        f"{duplicates.max_distance} of its 128 bits differ{plain}. A model that is tested on what it was trained on "
        "looks better than it is. Look at the pairs before you act: drawings of a few strokes are near without being "
        "copies."
    )
    pairs = "".join(
        f'<div class="card"><div class="pair">{_figure(one)}{_figure(other)}</div>'
        f"<figcaption>{distance} of 128 bits differ</figcaption></div>"
        for one, other, distance in duplicates.pairs
    )
    shown = (
        f'<h3>The nearest pairs across splits</h3><div class="cards" style="--card:310px">{pairs}</div>'
        if pairs
        else ""
    )
    return f"<p>{escape(text)}</p>{_plot(plots, 'near_duplicates', 'Near-duplicates by split')}{shown}"


def _quarantine(profile: TableProfile, plots: Mapping[str, bytes]) -> str:
    quarantine = profile.quarantine
    if quarantine is None or not quarantine.total:
        return "<p>Nothing is in quarantine.</p>"
    details = []
    for reason, count in sorted(quarantine.reasons.items(), key=lambda item: (-item[1], item[0])):
        rows = "".join(
            f'<tr><td class="l"><code>{escape(path)}</code></td><td class="l">{escape(error)}</td></tr>'
            for path, error in quarantine.examples.get(reason, ())
        )
        table = f"<table><tbody>{rows}</tbody></table>"
        details.append(f"<details><summary>{escape(reason)}: {count:,}</summary>{table}</details>")
    return _plot(plots, "quarantine", "Files in quarantine by reason") + "".join(details)


def _plot(plots: Mapping[str, bytes], name: str, description: str) -> str:
    return html_page.plot_tag(plots.get(name), description)


def _thumbnail(sample: Sample) -> str:
    return html_page.thumbnail_tag(sample.jpeg, f"{sample.path} ({sample.split})")


def _figure(sample: Sample) -> str:
    place = escape(html_page.tail_of(sample.path))
    caption = f"<b>{escape(sample.split or '')}</b> {escape(sample.class_name or '')}<br>{place}"
    image = html_page.thumbnail_tag(sample.jpeg, sample.path)
    return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"


def _codes(paths: Iterable[str]) -> str:
    return ", ".join(f"<code>{escape(path)}</code>" for path in list(paths)[:_EXAMPLE_PATHS])


def _shares(counts: Mapping[str, int]) -> str:
    total = sum(counts.values()) or 1
    return ", ".join(f"{name} {count:,} ({count / total:.0%})" for name, count in list(counts.items())[:8])


def _bytes(size: int) -> str:
    value, units = float(size), ["B", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.0f} {units[0]}" if value >= 100 or units[0] == "B" else f"{value:.1f} {units[0]}"
