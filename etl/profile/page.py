"""The profile as one HTML page that needs nothing else: no script, no font, no address; pure.

Every text of the table goes through `escape`; the page's own content security policy forbids scripts and requests.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from string import Template

from .data import ClassRows, NearDuplicates, Sample, TableProfile
from .findings import find_findings
from .plots import colours_of

_SIGNS = {"warning": "▲", "note": "●", "good": "✓"}
_EXAMPLE_PATHS = 4

_PAGE = Template("""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title><style>$style</style></head>
<body><header><h1>$name</h1><p class="where">$where</p><ul class="facts">$facts</ul></header>
<nav>$links</nav><main>$sections</main>
<footer>Made by lakelens from version $version alone; the quarantine is as it is now.</footer></body></html>
""")

_STYLE = """
:root{--ink:#222;--soft:#666;--line:#e3e3e3;--bad:#b3400e;--good:#0a7a55}
*{box-sizing:border-box}body{margin:0 auto;max-width:1060px;padding:0 24px 48px;color:var(--ink);background:#fff;
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif}
header{padding-top:28px}h1{margin:0;font-size:26px;overflow-wrap:anywhere}.where{margin:2px 0 14px;color:var(--soft);
overflow-wrap:anywhere;font-size:13px}
.facts{display:flex;flex-wrap:wrap;gap:10px 34px;margin:0;padding:0;list-style:none}
.facts b{display:block;font-size:21px;
font-weight:600;font-variant-numeric:tabular-nums}.facts span{color:var(--soft);font-size:13px}
nav{position:sticky;top:0;z-index:1;margin:18px -24px 0;padding:9px 24px;background:#fffffff2;
border-bottom:1px solid var(--line);font-size:14px}nav a{margin-right:18px;color:#0063a0;text-decoration:none}
section{padding-top:26px;scroll-margin-top:30px}h2{margin:0 0 8px;font-size:19px}h3{margin:18px 0 6px;font-size:15px}
p{margin:6px 0;max-width:76ch}img.plot{display:block;width:100%;height:auto;margin:6px 0}
.findings{margin:0;padding:0;list-style:none}.findings li{padding:5px 0 5px 26px;position:relative;
overflow-wrap:anywhere}.findings i{position:absolute;left:3px;font-style:normal;color:var(--soft)}
.warning i{color:var(--bad)}.good i{color:var(--good)}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:14px}
th,td{padding:3px 10px 3px 0;border-bottom:1px solid var(--line);text-align:right;vertical-align:middle}
th{color:var(--soft);font-weight:500;font-size:13px;white-space:nowrap}th.l,td.l{text-align:left;overflow-wrap:anywhere}
td.zero{color:var(--bad);font-weight:600}td.bar{width:34%;padding-right:0}
.scroll{max-height:560px;overflow:auto;border:1px solid var(--line);border-radius:6px;padding:0 12px}
.scroll thead th{position:sticky;top:0;background:#fff;box-shadow:0 1px var(--line)}
.track{display:flex;height:13px}.track span{display:block;height:100%}
.key{display:inline-block;width:11px;height:11px;margin:0 5px 0 14px;vertical-align:-1px}
.cards{display:grid;gap:14px;align-items:start;grid-template-columns:repeat(auto-fill,minmax(var(--card),1fr))}
.card{border:1px solid var(--line);border-radius:6px;padding:8px 10px;min-width:0}
.card h3{margin:0 0 6px;font-size:14px;
font-weight:600;overflow-wrap:anywhere}.card h3 small{color:var(--soft);font-weight:400}
.thumbs{display:flex;flex-wrap:wrap;gap:5px}.thumbs img{display:block;max-width:100%;height:var(--thumb);width:auto;
border-radius:3px;background:#eee;outline:1px solid #0001}
.pair{display:flex;gap:8px}.pair figure{margin:0;flex:1;min-width:0}.pair img{display:block;width:100%;height:150px;
object-fit:contain;background:#f3f3f3;border-radius:3px}figcaption{font-size:12px;color:var(--soft);
overflow-wrap:anywhere}
code{font:12px/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere}
summary{cursor:pointer;color:#0063a0;padding:4px 0}dl{margin:0;display:grid;grid-template-columns:max-content 1fr;
gap:2px 18px;font-size:14px}dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
footer{margin-top:36px;color:var(--soft);font-size:13px;border-top:1px solid var(--line);padding-top:10px}
@media print{nav{display:none}.scroll{max-height:none}}
"""


def render_page(profile: TableProfile, plots: Mapping[str, bytes]) -> str:
    """Renders the page.

    Args:
        profile: The numbers.
        plots: PNG files by name, as `profile_plots.draw_plots` gives them.
    """
    sections = [
        ("look", "Look at first", _findings(profile)),
        ("classes", "Classes", _classes(profile, plots)),
        ("splits", "Splits", _splits(profile, plots)),
        ("images", "Images", _images(profile, plots)),
        ("boxes", "Boxes", _boxes(profile, plots)),
        ("samples", "Samples", _samples(profile)),
        ("duplicates", "Near-duplicates", _duplicates(profile, plots)),
        ("quarantine", "Quarantine", _quarantine(profile, plots)),
    ]
    shown = [(key, title, body) for key, title, body in sections if body]
    name = profile.location.rstrip("/").rpartition("/")[2] or profile.location
    return _PAGE.substitute(
        title=escape(f"{name} version {profile.version}"),
        style=_STYLE,
        name=escape(f"{name} · version {profile.version}"),
        where=escape(_where(profile)),
        facts=_facts(profile),
        links="".join(f'<a href="#{key}">{title}</a>' for key, title, _ in shown),
        sections="".join(f'<section id="{key}"><h2>{title}</h2>{body}</section>' for key, title, body in shown),
        version=str(profile.version),
    )


def _where(profile: TableProfile) -> str:
    when = "" if profile.timestamp is None else f" · committed {profile.timestamp:%Y-%m-%d %H:%M} UTC"
    return profile.location + when


def _facts(profile: TableProfile) -> str:
    facts = [
        (f"{profile.rows:,}", "images"),
        (f"{len([c for c in profile.named_classes if c.total or c.total_boxes]):,}", "classes"),
        (f"{len(profile.splits):,}", "splits"),
        (_bytes(profile.stored_bytes), "in 1 file" if profile.files == 1 else f"in {profile.files:,} files"),
    ]
    if profile.boxes is not None:
        facts.append((f"{profile.boxes.total:,}", "boxes"))
    if profile.quarantine is not None:
        facts.append((f"{profile.quarantine.total:,}", "in quarantine"))
    return "".join(f"<li><b>{escape(value)}</b><span>{escape(name)}</span></li>" for value, name in facts)


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
        size = (
            f"{sizes.distinct:,} sizes, {sizes.widths[0]:,} to {sizes.widths[1]:,} pixels wide and "
            f"{sizes.heights[0]:,} to {sizes.heights[1]:,} high"
        )
    else:
        size = "not recorded"
    if 0 < sizes.known < profile.rows:
        size += f"; not recorded of {profile.rows - sizes.known:,}"
    facts = [
        ("size", size),
        ("stored as", _shares(sizes.formats)),
        ("modes", _shares(sizes.modes) or "not looked at"),
    ]
    facts += (
        [("recipe", ", ".join(f"{key} {value}" for key, value in profile.recipe.items()))] if profile.recipe else []
    )
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts if value)
    return f"<dl>{listed}</dl>" + _plot(plots, "image_sizes", "Sizes of images and files")


def _boxes(profile: TableProfile, plots: Mapping[str, bytes]) -> str:
    boxes = profile.boxes
    if boxes is None:
        return ""
    parts = [
        f"{boxes.total:,} boxes in {boxes.images:,} images",
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
        f"{duplicates.compared:,} images compared by a perceptual hash: two look alike when at most "
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
    data = plots.get(name)
    if data is None:
        return ""
    return f'<img class="plot" alt="{escape(description)}" src="data:image/png;base64,{_base64(data)}">'


def _thumbnail(sample: Sample) -> str:
    about = escape(f"{sample.path} ({sample.split})", quote=True)
    return f'<img alt="" title="{about}" src="data:image/jpeg;base64,{_base64(sample.jpeg)}">'


def _figure(sample: Sample) -> str:
    caption = f"<b>{escape(sample.split or '')}</b> {escape(sample.class_name or '')}<br>{escape(_tail(sample.path))}"
    image = (
        f'<img alt="" title="{escape(sample.path, quote=True)}" src="data:image/jpeg;base64,{_base64(sample.jpeg)}">'
    )
    return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"


def _tail(path: str) -> str:
    """The last two parts of a path: enough to tell files apart."""
    return "/".join(path.rsplit("/", 2)[-2:])


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


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
