"""The site is built as `make docs` builds it: strictly, with the pages of the API made of the package's docstrings."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from child_processes import run_to_end

import lakelens

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
# A link without a scheme; what follows a # is in the page.
_LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")


@pytest.mark.system
@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_site_builds_strictly_and_describes_every_public_name(tmp_path: Path) -> None:
    site = tmp_path / "site"
    command = [str(ROOT / ".ci" / "docs"), str(ROOT / ".docs-venv"), str(site)]
    run_to_end(command, env={**os.environ, "PYTHON": sys.executable}, timeout=500)
    described = "".join(page.read_text(encoding="utf-8") for page in (site / "api").glob("*.html"))
    # Errors, and packages that are public themselves, are described where they are defined.
    errors = {name for name in lakelens.__all__ if hasattr(lakelens.errors, name)}
    public = set(lakelens.__all__) - errors - {"__version__", "hvd", "search"}
    assert [name for name in public if f'id="lakelens.{name}"' not in described] == []
    for anchor in ("ImageTable.pin", "HorovodRunner.run", "errors.RankFailedError", "training.distributed.allreduce"):
        assert f'id="lakelens.{anchor}"' in described
    assert "Stores the new and changed files of a source, as one commit." in described
    architecture = (site / "architecture.html").read_text(encoding="utf-8")
    modules = [path.name for path in (ROOT / "etl").rglob("*.py") if path.name != "__init__.py"]
    assert [name for name in modules if f"<code>{name}</code>: " not in architecture] == []
    commands = (site / "commands.html").read_text(encoding="utf-8")
    assert 'id="lakelens-table-vacuum"' in commands
    pages = [str(page.relative_to(DOCS).with_suffix(".html")) for page in DOCS.rglob("*.md")]
    assert [page for page in pages if not (site / page.replace("README", "index")).is_file()] == []


@pytest.mark.unit
def test_pages_hold_no_placeholder_and_name_tests_that_exist() -> None:
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.py")}
    names = {path.rpartition("/")[2] for path in files}
    for page in [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        text = page.read_text(encoding="utf-8")
        if page.name != "commands.md":  # where they stand for the values of flags
            assert re.findall(r"\b[A-Z0-9]+_(?:RESULT|SIZE|MEASURED)\b", text) == [], page
        assert [path for path in re.findall(r"tests/[\w/]+\.py", text) if path not in files] == [], page
        assert [name for name in re.findall(r"\btest_\w+\.py", text) if name not in names] == [], page


@pytest.mark.unit
def test_links_of_pages_lead_to_files_of_a_checkout_too() -> None:
    pages = [*DOCS.rglob("*.md"), *ROOT.glob("*.md")]
    links = [(page, link) for page in pages for link in _LINK.findall(page.read_text(encoding="utf-8"))]
    assert links
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []
