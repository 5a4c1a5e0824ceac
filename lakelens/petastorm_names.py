"""Loads Petastorm 0.13.1 with a newer pyarrow, NumPy and Python: changes, in its modules alone, names that these lack.

Where a name exists, its module stays as it is: with pyarrow 14, NumPy 1 and a `distutils` nothing is changed.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import NamedTuple

from .errors import MissingDependencyError

IMPORT = "import lakelens"


class _Change(NamedTuple):
    """A text of Petastorm's source, the name that it needs, and the text that does without."""

    needs: str
    old: str
    new: str


_DISTUTILS = _Change(
    "distutils.version",
    "from distutils.version import LooseVersion",
    "from packaging.version import Version as LooseVersion",
)
_UNICODE = _Change("numpy.unicode_", "np.unicode_", "np.str_")
_STRING = _Change("numpy.string_", "np.string_", "np.bytes_")
_READERS = (
    "Petastorm reads files by pyarrow.localfs, which is gone from pyarrow; read the table with "
    "lakelens.DeltaFeed(TABLE).petastorm_reader(), which takes the place of make_reader and make_batch_reader"
)
_CHANGES = {
    "petastorm.arrow_reader_worker": (_UNICODE,),
    "petastorm.fs_utils": (
        _Change(
            "pyarrow.localfs",
            "self._filesystem = pyarrow.localfs",
            f"raise __import__('lakelens.errors', fromlist=['errors']).MissingDependencyError({_READERS!r})",
        ),
    ),
    "petastorm.hdfs.namenode": (
        _DISTUTILS,
        # Its HDFS client subclasses the legacy one; the adapters open no file systems of Petastorm.
        _Change("pyarrow.hdfs", "from pyarrow.hdfs import HadoopFileSystem", "HadoopFileSystem = object"),
    ),
    "petastorm.predicates": (_Change("numpy.in1d", "np.in1d", "np.isin"),),
    "petastorm.spark.spark_dataset_converter": (
        _DISTUTILS,
        _Change(
            "pyarrow.LocalFileSystem", "from pyarrow import LocalFileSystem", "from pyarrow.fs import LocalFileSystem"
        ),
    ),
    "petastorm.tf_utils": (_UNICODE, _STRING),
    "petastorm.unischema": (_UNICODE, _STRING),
    "petastorm.utils": (_Change("pyarrow.filesystem", "from pyarrow.filesystem import", "from pyarrow.fs import"),),
    "petastorm.weighted_sampling_reader": (_Change("numpy.float", "np.float)", "float)"),),
}


def install() -> None:
    """Changes what is missing in the modules of Petastorm that are imported from now on."""
    if not any(isinstance(finder, _NamesFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _NamesFinder())


def check_loaded() -> None:
    """Checks that no module of Petastorm was imported before `install`, without its changes."""
    for name in _CHANGES:
        module = sys.modules.get(name)
        if module is not None and not isinstance(module.__loader__, _NamesLoader) and _needed(name):
            raise MissingDependencyError(
                f"{name} was imported before lakelens and lacks {_needed(name)[0].needs}: start Python again, with "
                f"`{IMPORT}` before the first import of petastorm"
            )


class _NamesFinder:  # without the base class, whose import takes longer than all of `import lakelens`
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if _needed(fullname) else None
        if spec is not None and spec.origin is not None:
            spec.loader = _NamesLoader(fullname, spec.origin)
        return spec


class _NamesLoader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        source = self.get_source(fullname) or ""
        for change in _needed(fullname):
            source = source.replace(change.old, change.new)
        return compile(source, self.path, "exec", dont_inherit=True)


def _needed(module: str) -> list[_Change]:
    return [change for change in _CHANGES.get(module, ()) if not _exists(change.needs)]


def _exists(name: str) -> bool:
    """Returns whether a module has an attribute or a submodule of this name."""
    parent, _, last = name.rpartition(".")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # several of these names warn before they are removed
        try:
            if hasattr(importlib.import_module(parent), last):
                return True
            importlib.import_module(name)
        except ImportError:
            return False
    return True
