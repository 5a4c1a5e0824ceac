"""Pages from the zip file of Python modules that spark-submit ships."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

PACKAGES = ("etl", "inference", "jobs", "search", "training")


def test_each_page_finds_its_templates_in_a_zip_file(tmp_path):
    checkout = Path(__file__).parents[2]
    pages = [page.parent for folder in PACKAGES for page in (checkout / folder).rglob("page.html")]
    assert len(pages) >= 3
    archive = tmp_path / "lakelens.zip"
    with zipfile.ZipFile(archive, "w") as written:
        for folder in ("lakelens", *PACKAGES):
            for file in (checkout / folder).rglob("*"):
                name = Path("" if folder == "lakelens" else "lakelens", file.relative_to(checkout))
                if file.suffix in (".py", ".html"):
                    written.write(file, name)
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
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(archive / "lakelens" / "results.py")
