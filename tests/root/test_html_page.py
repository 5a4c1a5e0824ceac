"""Pages from the zip file of Python modules that spark-submit ships."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from borrowed import archive_of_checkout
from child_processes import run_to_end

pytestmark = pytest.mark.system

PACKAGES = ("etl", "inference", "jobs", "search", "training")


def test_each_page_finds_its_templates_in_a_zip_file(tmp_path):
    checkout = Path(__file__).parents[2]
    pages = [page.parent for folder in PACKAGES for page in (checkout / folder).rglob("page.html")]
    assert len(pages) >= 3
    archive = archive_of_checkout(tmp_path)
    code = (
        "import importlib, sys, lakelens.results as pages; print(pages.__file__)\n"
        "for package in sys.argv[1:]:\n"
        "    importlib.import_module(package)\n"
        "    for template in ('page.html', 'base.html', 'parts.html'):\n"
        "        pages._environment(package).get_template(template)\n"
    )
    packages = [".".join(("lakelens", *page.relative_to(checkout).parts)) for page in pages]
    command = [sys.executable, "-c", code, *packages]
    environment = {**os.environ, "PYTHONPATH": str(archive)}
    done = run_to_end(command, cwd=tmp_path, env=environment)
    assert done.stdout.strip() == str(archive / "lakelens" / "results.py")
