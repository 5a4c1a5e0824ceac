"""Small environments that borrow the running one's packages, without its lakelens."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

from child_processes import run_to_end

# A table of eight images that any environment with lakelens can write.
TABLE = """
import io
import pyarrow as pa
from deltalake import write_deltalake
from PIL import Image
import lakelens
picture = io.BytesIO()
Image.new("RGB", (16, 16), "red").save(picture, "JPEG")
columns = {
    "path": pa.array([f"/p/{i}.jpg" for i in range(8)]),
    "image": pa.array([picture.getvalue()] * 8, pa.binary()),
    "label": pa.array([0, 1] * 4, pa.int32()),
    "split": pa.array(["train"] * 6 + ["validation"] * 2),
}
write_deltalake("table", pa.table(columns), mode="overwrite")
"""


@dataclass(frozen=True)
class Borrower:
    """An environment in a folder, whose other packages are those of the running environment."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        return next(self.folder.glob("lib/python3.*/site-packages"))

    def install(self, *arguments: str) -> None:
        """Installs with the running environment's pip, without a download."""
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet", "--no-deps"]
        command += ["--no-index", "--no-build-isolation", "--ignore-installed", "--no-cache-dir", *arguments]
        run_to_end(command, env=clean_environment())

    def run(self, code: str, **variables: str) -> str:
        """Runs Python code outside the checkout and returns what it printed."""
        command = [str(self.python), "-c", code]
        return run_to_end(command, cwd=self.folder, env=clean_environment() | variables).stdout.strip()


def clean_environment() -> dict[str, str]:
    """The environment without what would lead an interpreter to this checkout or to an installation elsewhere."""
    dropped = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_USER", "PIP_PREFIX", "SPARK_HOME", "MAKEFLAGS", "MFLAGS")
    dropped += ("PYSPARK_PYTHON",)  # as a session of an earlier test leaves it
    return {name: value for name, value in os.environ.items() if name not in dropped}


def make_borrower(folder: Path) -> Borrower:
    """Makes an environment in 0.1 s: no pip, and a path file to this environment's packages.

    Path files of the folder that a path file names are not read, so an editable lakelens of this environment stays out.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    made = Borrower(folder)
    (made.site_packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return made


def put_metadata(site: Path, name: str, version: str) -> None:
    """Writes what pip leaves of a package's metadata, as an installation would lie there."""
    information = site / f"{name}-{version}.dist-info"
    information.mkdir(parents=True)
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (information / "METADATA").write_text(text, encoding="utf-8")


def archive_of_checkout(folder: Path) -> Path:
    """What `make wheel` writes, without building it."""
    staged, checkout = folder / "staged" / "lakelens", Path(__file__).parents[1]
    for part in ("lakelens", "etl", "training", "search", "inference", "jobs"):
        target = staged if part == "lakelens" else staged / part
        shutil.copytree(checkout / part, target, ignore=shutil.ignore_patterns("__pycache__"))
    return Path(shutil.make_archive(str(folder / "lakelens"), "zip", folder / "staged"))
