"""Petastorm with a pyarrow, NumPy and Python that lack names which it uses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import lakelens

pytestmark = pytest.mark.unit

# What newer releases lack, where they still are there.
NEWER = """
import sys
import numpy
vars(numpy).pop("unicode_", None), vars(numpy).pop("string_", None)
sys.modules["distutils"] = None
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-c", code]
    folder = Path(lakelens.__file__).parents[1]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def test_petastorm_loads_after_lakelens_whatever_names_are_missing() -> None:
    code = f"""{NEWER}
import lakelens
assert "petastorm" not in sys.modules
import petastorm.predicates
from lakelens import petastorm_names
from petastorm.unischema import Unischema, UnischemaField
schema = Unischema("schema", [UnischemaField("name", numpy.str_, (), None, False)])
print(schema.as_spark_schema().simpleString(), petastorm.predicates.in_set({{1}}, "name").do_include({{"name": 1}}))
for name in petastorm_names._CHANGES:  # modules whose names all exist load unchanged
    if name in sys.modules and not petastorm_names._needed(name):
        assert not isinstance(sys.modules[name].__loader__, petastorm_names._NamesLoader), name
"""
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "struct<name:string> True"


def test_a_petastorm_that_was_imported_first_names_the_import_to_add() -> None:
    code = f"""{NEWER}
try:
    import petastorm
except ImportError:
    pass
from lakelens import decode_images
decode_images(8, 8)
"""
    done = run(code)
    assert "MissingDependencyError: petastorm." in done.stderr
    assert "`import lakelens` before the first import of petastorm" in done.stderr


def test_a_reader_of_petastorm_that_pyarrow_does_not_allow_names_that_of_the_feed(tmp_path: Path) -> None:
    code = f"""
import lakelens, pyarrow, petastorm
assert not hasattr(pyarrow, "localfs")
for reader in (petastorm.make_reader, petastorm.make_batch_reader):
    try:
        reader("file://{tmp_path}")
    except Exception as error:
        print(error)
"""
    said = run(code).stdout
    assert said.count("lakelens.DeltaFeed(TABLE).petastorm_reader(), which takes the place of make_reader") == 2, said
