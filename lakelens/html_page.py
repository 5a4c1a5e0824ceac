"""HTML pages that need nothing else: no script, no font, no address; pure.

A page's content security policy forbids scripts and requests. Texts from outside go through `escape`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from html import escape
from string import Template

_ROWS_WITHOUT_SCROLLING = 20

_PAGE = Template("""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title><style>$style</style></head>
<body><header><h1>$name</h1><p class="where">$where</p><ul class="facts">$facts</ul></header>
<nav>$links</nav><main>$sections</main>
<footer>$footer</footer></body></html>
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
.wide{overflow-x:auto}pre{margin:0;padding:12px 14px;overflow:auto;background:#f6f7f8;border-radius:6px}
@media(max-width:700px){body{padding:0 14px 40px}.wide>*{min-width:640px}
nav{margin:14px -14px 0;padding:9px 14px;overflow-x:auto;white-space:nowrap}}
@media print{nav{display:none}.scroll{max-height:none}}
"""


def render_page(
    name: str, where: str, facts: Mapping[str, str], sections: Iterable[tuple[str, str, str]], footer: str
) -> str:
    """Renders a page.

    Args:
        name: Its heading.
        where: The line below.
        facts: Large values by what they are, under the heading.
        sections: Anchor, title and HTML of each section; those without HTML are left out.
        footer: Its last line.
    """
    shown = [(key, title, body) for key, title, body in sections if body]
    return _PAGE.substitute(
        title=escape(name),
        style=_STYLE,
        name=escape(name),
        where=escape(where),
        facts="".join(f"<li><b>{escape(value)}</b><span>{escape(what)}</span></li>" for what, value in facts.items()),
        links="".join(f'<a href="#{key}">{escape(title)}</a>' for key, title, _ in shown),
        sections="".join(f'<section id="{key}"><h2>{escape(title)}</h2>{body}</section>' for key, title, body in shown),
        footer=escape(footer),
    )


def plot_tag(png: bytes | None, description: str, width_px: int | None = None) -> str:
    """Writes a PNG into the page, at the page's width or narrower; nothing for None."""
    if png is None:
        return ""
    style = "" if width_px is None else f' style="max-width:{width_px}px"'
    source = f"data:image/png;base64,{base64_of(png)}"
    return f'<img class="plot"{style} alt="{escape(description, quote=True)}" src="{source}">'


def thumbnail_tag(jpeg: bytes, about: str) -> str:
    """Writes a JPEG into the page; `about` is shown under the mouse."""
    return f'<img alt="" title="{escape(about, quote=True)}" src="data:image/jpeg;base64,{base64_of(jpeg)}">'


def table_tag(head: Iterable[tuple[str, bool]], rows: Iterable[Iterable[str]]) -> str:
    """Writes a table of texts.

    Args:
        head: For each column its heading, and whether its cells are texts, which start at the left.
        rows: The cells.
    """
    columns = list(head)
    kinds = [' class="l"' if is_text else "" for _, is_text in columns]
    top = "".join(f"<th{kind}>{escape(title)}</th>" for kind, (title, _) in zip(kinds, columns, strict=True))
    lines = ["".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    table = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>' if len(lines) > _ROWS_WITHOUT_SCROLLING else table


def tail_of(path: str) -> str:
    """The last two parts of a path: enough to tell files apart."""
    return "/".join(path.rsplit("/", 2)[-2:])


def base64_of(data: bytes) -> str:
    """Encodes bytes for a `data:` address."""
    return base64.b64encode(data).decode("ascii")
