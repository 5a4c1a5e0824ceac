"""The public surface: names, laziness, errors."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest

import lakelens
import lakelens.errors

pytestmark = pytest.mark.unit


def test_import_loads_nothing_heavy_and_neither_do_errors_runs_and_the_search() -> None:
    code = (
        "import sys, lakelens; heavy = {'pyspark', 'tensorflow', 'mlflow', 'petastorm', 'horovod', 'pandas'}; "
        "print(heavy.union(['numpy', 'pyarrow', 'PIL', 'pydantic']).intersection(sys.modules)); "
        "import lakelens.errors, lakelens.tracking.runs; assert lakelens.search.preview; "
        "print(heavy.intersection(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["set()", "set()"]


def test_every_public_name_can_be_imported_and_another_one_is_an_attribute_error() -> None:
    for name in lakelens.__all__:
        assert getattr(lakelens, name) is not None, name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = lakelens.nothing


def test_every_error_is_ours() -> None:
    errors = [e for e in vars(lakelens.errors).values() if isinstance(e, type) and issubclass(e, Exception)]
    assert len(errors) > 10
    assert [error for error in errors if not issubclass(error, lakelens.LakelensError)] == []


def test_type_checkers_and_the_pages_of_the_documentation_see_every_public_name() -> None:
    tree = ast.parse(Path(lakelens.__file__).read_text(encoding="utf-8"))
    (typed,) = (one for one in tree.body if isinstance(one, ast.If) and ast.unparse(one.test) == "TYPE_CHECKING")
    seen = {alias.name for one in typed.body if isinstance(one, ast.ImportFrom) for alias in one.names}
    assert {name for names in lakelens._NAMES.values() for name in names} <= seen


def test_a_function_that_names_the_search_is_sent_to_ranks_as_one_that_names_a_module() -> None:
    search = lakelens.search
    assert cloudpickle.loads(cloudpickle.dumps(lambda: search))() is search
