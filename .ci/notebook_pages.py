"""A hook of MkDocs: a page for each notebook, with its outputs if `make notebooks` has run it.

`make notebooks` leaves the executed notebooks in `.notebooks`. Without them the pages show text and code only, so the
site never shows outputs of other code.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
EXECUTED = ROOT / ".notebooks"
MOST_LINES = 30  # of one output
# A link of a page to the source of a notebook, which is a folder further up than its page in the site.
_SOURCE = re.compile(r"\]\(\.\./((?:\.\./)*)notebooks/(\d\w+)\.py\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages, and the pictures that they show."""
    from mkdocs.structure.files import File

    for source in sorted(NOTEBOOKS.glob("[0-9]*.py")):
        pictures: dict[str, bytes] = {}
        text = "\n\n".join(page_of(source, pictures))
        files.append(File.generated(config, f"notebooks/{source.stem}.md", content=text))
        for name, data in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=data))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Lets links to notebooks, which lead to their sources in a checkout, lead to their pages."""
    return _SOURCE.sub(r"](\1notebooks/\2.md)", markdown)


def page_of(source: Path, pictures: dict[str, bytes]) -> Iterator[str]:
    """Gives the parts of a notebook's page; adds its pictures by their names."""
    cells = _to_jupyter().notebook_of(source.read_text(encoding="utf-8"))["cells"]
    outputs = outputs_of(source.stem, cells)
    for cell in cells:
        if cell["cell_type"] == "markdown":
            yield cell["source"]
        elif not cell["source"].startswith("%run"):
            yield f"```python\n{cell['source']}\n```"
        for output in _joined(outputs.get(cell["source"], [])):
            yield from _shown(output, source.stem, pictures)


def outputs_of(name: str, cells: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The outputs by the code that made them; none of an executed notebook whose code differs from the present one."""
    for path in sorted(EXECUTED.rglob(f"{name}.ipynb")):
        executed = [
            cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"
        ]
        sources = ["".join(cell["source"]) for cell in executed]
        if sources == [cell["source"] for cell in cells if cell["cell_type"] == "code"]:
            return {source: cell["outputs"] for source, cell in zip(sources, executed, strict=True)}
    return {}


def _joined(outputs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The outputs that are shown, without progress bars and whole HTML pages; lines printed in a row are one output."""
    printed: list[str] = []
    for output in [one for one in outputs if not _is_hidden(one)] + [{}]:
        if output.get("name") == "stdout":
            printed += output["text"]
            continue
        if printed:
            yield {"text": printed}
        printed = []
        yield output


def _is_hidden(output: dict[str, Any]) -> bool:
    data = output.get("data", {})
    is_page = "<iframe" in "".join(data.get("text/html", ""))
    return output.get("name") == "stderr" or is_page or "application/vnd.jupyter.widget-view+json" in data


def _shown(output: dict[str, Any], name: str, pictures: dict[str, bytes]) -> Iterator[str]:
    """An output in Markdown: text and pictures."""
    data = output.get("data", {})
    if "image/png" in data:
        picture = f"{name}-{len(pictures) + 1}.png"
        pictures[picture] = base64.b64decode("".join(data["image/png"]))
        yield f"![output of the cell above]({picture})"
        return
    lines = "".join(output.get("text", data.get("text/plain", ""))).rstrip().splitlines()
    if lines:
        shown = [*lines[:MOST_LINES], "..."] if len(lines) > MOST_LINES else lines
        yield "```text\n" + "\n".join(shown) + "\n```"


def _to_jupyter() -> ModuleType:
    spec = importlib.util.spec_from_file_location("to_jupyter", NOTEBOOKS / "to_jupyter.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"{NOTEBOOKS / 'to_jupyter.py'} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
