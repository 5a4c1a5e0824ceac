"""The sample images of Pillow's source distribution: files that no one here made, broken ones of past reports too."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import PIL
import pytest

_DOWNLOAD_S = 200


def pillow_samples() -> Path:
    """Gives the folder of sample images that belongs to the installed Pillow; skips the test when it cannot be had.

    pip fetches the source distribution from its own index, once: the images stay in the user's cache.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lakelens"
    home = cache / f"pillow-{PIL.__version__}-images"
    if home.is_dir():
        return home
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        place = Path(temporary)
        archive = _download(place)
        with tarfile.open(archive) as file:
            members = [member for member in file if "/Tests/images/" in member.name]
            file.extractall(place, members=members, filter="data")
        images = next(place.glob("*/Tests/images"), None)
        if images is None:
            pytest.skip(f"{archive.name} holds no folder Tests/images")
        try:
            images.rename(home)
        except OSError:  # another run was faster
            shutil.rmtree(images)
    return home


def _download(place: Path) -> Path:
    # Wheels hold no samples. pip asks a source distribution for its metadata, which compiles nothing.
    wanted = ["--no-deps", "--no-binary", "pillow", f"pillow=={PIL.__version__}"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(place), *wanted]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_S, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"Pillow's source distribution did not come within {_DOWNLOAD_S} s")
    found = next(place.glob("*.tar.gz"), None)
    if done.returncode or found is None:
        last = (done.stderr.strip().splitlines() or ["no word from pip"])[-1]
        pytest.skip(f"Pillow's source distribution cannot be had: {last}")
    return found
