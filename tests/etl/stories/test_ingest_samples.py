"""Image files that no one here made, through a real two-executor Spark."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import PIL
import pytest
from spark_jobs import failed_tasks
from stored_rows import stored_paths

from lakelens import ImageTable
from lakelens.etl.files import local_uri
from lakelens.etl.images.codec import FORMATS
from lakelens.etl.images.recipe import Limits
from lakelens.etl.quarantine import REASONS

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(700)]

# What Pillow alone shows, in a process of its own: these files have made decoders crash before.
PLAIN_PILLOW = """
import json, sys, warnings
from PIL import Image
warnings.simplefilter("ignore")
shown = []
for path in json.load(sys.stdin):
    try:
        with Image.open(path) as image:
            image.load()
            shown.append([path, image.format])
    except Exception:
        pass
print(json.dumps(shown))
"""


def pillow_samples() -> Path:
    """Gives the folder of sample images of the installed Pillow, broken ones of past reports too.

    pip fetches Pillow's source distribution, once: the images stay in the user's cache. Skips where it cannot be had.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lakelens"
    home = cache / f"pillow-{PIL.__version__}-images"
    if home.is_dir():
        return home
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as place:
        wanted = ["--no-deps", "--no-binary", "pillow", f"pillow=={PIL.__version__}"]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", place, *wanted]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"Pillow's source distribution cannot be had: {done.stderr.strip()[-200:]}")
        (archive,) = Path(place).glob("*.tar.gz")
        with tarfile.open(archive) as file:
            file.extractall(place, [member for member in file if "/Tests/images/" in member.name], filter="data")
        (images,) = Path(place).glob("*/Tests/images")
        with contextlib.suppress(OSError):  # another run was faster
            images.rename(home)
    return home


def shown_by_pillow(files: list[Path]) -> set[Path]:
    names = json.dumps([str(file) for file in files])
    done = subprocess.run([sys.executable, "-c", PLAIN_PILLOW], input=names, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return {Path(path) for path, file_format in found if file_format.upper() in {*FORMATS, "MPO"}}


def test_every_sample_image_of_pillows_source_is_stored_or_quarantined(spark, tmp_path):
    samples = pillow_samples()
    files = sorted(path for path in samples.rglob("*") if path.is_file())
    uris = {local_uri(os.fsencode(path)): path for path in files}
    # As rows, so that files whose names say nothing are opened too.
    source = spark.createDataFrame([(uri,) for uri in uris], "path STRING")
    failed = failed_tasks(spark)
    table = ImageTable(spark, tmp_path / "t")
    result = table.ingest(source, size=64, limits=Limits(timeout_s=120))
    assert failed_tasks(spark) == failed
    assert result.rows_in == len(files) == result.stored + result.quarantined
    stored = stored_paths(table.location)
    bad = table.quarantine().files
    assert sorted([*stored, *(file.path for file in bad)]) == sorted(uris)
    assert set(result.reasons) <= set(REASONS) - {"decoder_crashed", "timeout", "unstable", "unreadable"}
    # Pillow shows noise where a TIFF has a plane of 16 bits for each colour.
    assert (
        shown_by_pillow([uris[file.path] for file in bad if "PlanarConfiguration 2" not in (file.error or "")]) == set()
    )
    again = table.ingest(source)
    assert (again.skipped, again.committed) == (len(files), False)
