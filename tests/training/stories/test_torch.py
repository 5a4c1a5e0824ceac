"""PyTorch on pinned versions, in an environment without TensorFlow: Petastorm's loaders, one process, and two."""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from coloured_tables import add_rows, coloured_table
from deltalake import write_deltalake
from PIL import Image

from lakelens import DeltaFeed, make_delta_converter
from lakelens.errors import MissingDependencyError
from lakelens.spark.jvm import find_java
from lakelens.training.experiment.train import train

CHECKOUT = Path(__file__).resolve().parents[3]
RULES = sorted(
    path.relative_to(CHECKOUT / "tests").as_posix() for path in (CHECKOUT / "tests" / "pytorch").glob("test_*.py")
)
EPOCHS, BATCH = 3, 32
# Rows of the versions 0 and 1: of both, the second shard has a row less; of version 0, a batch less too.
ROWS = (897, 1797)


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> Path:
    """scikit-learn's digits: 897 of them in version 0, all in version 1; `number` tells the rows apart."""
    from sklearn.datasets import load_digits

    found = load_digits()
    table = tmp_path_factory.mktemp("torch") / "digits"
    for first, last in zip((0, *ROWS), ROWS, strict=False):
        images = []
        for scan in found.images[first:last]:
            buffer = io.BytesIO()
            Image.fromarray((255 - scan * (255 / 16)).astype("uint8")).resize((16, 16)).save(buffer, "JPEG")
            images.append(buffer.getvalue())
        rows = {
            "image": pa.array(images, pa.binary()),
            "label": pa.array(found.target[first:last], pa.int32()),
            "number": pa.array(np.arange(first, last), pa.int64()),
        }
        write_deltalake(str(table), pa.table(rows), mode="append")
    return table


@pytest.fixture(scope="module")
def torch_python() -> Path:
    """The Python of an environment with PyTorch and lakelens's extra `feed`, kept in the user's cache."""
    sys.path.insert(0, str(CHECKOUT))
    from benchmarks.peers import make_peer

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return make_peer("torch", cache / "lakelens" / "peers")


def run(python: Path, arguments: list[Any], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    # A session of an earlier test leaves its own Python in PYSPARK_PYTHON.
    own = {"PYTHONPATH": str(CHECKOUT), "JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": str(python)}
    found = {**os.environ, **own, **variables}
    return subprocess.run(
        [python, *arguments], cwd=folder, env=found, capture_output=True, text=True, timeout=1200, check=False
    )


@pytest.fixture(scope="module")
def results(digits, torch_python, tmp_path_factory) -> dict[str, Any]:
    cases = [{"table": str(digits), "version": version, "epochs": EPOCHS, "batch_size": BATCH} for version in (0, 1)]
    request = json.dumps({"loaders": {"table": str(digits), "version": 0}, "cases": cases})
    script = Path(__file__).parents[1] / "torch_script.py"
    done = run(torch_python, [script, request], tmp_path_factory.mktemp("torch-run"))
    assert done.returncode == 0, done.stderr[-5000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


pytorch = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1800)]


class TestPyTorch:
    """One run of the PyTorch environment, looked at from several sides."""

    pytestmark = pytorch

    def test_petastorms_loaders_take_the_reader(self, results):
        for name, found in results["loaders"].items():
            assert sorted(found["numbers"]) == list(range(ROWS[0])), name
            assert found["types"] == {"label": "torch.int32", "number": "torch.int64", "image": "torch.uint8"}, name
            assert {tuple(shape[1:]) for shape in found["shapes"]} == {(16, 16, 3)}, name
            assert sum(shape[0] for shape in found["shapes"]) == ROWS[0], name

    @pytest.mark.parametrize("version", [0, 1])
    def test_one_process_learns_the_digits_from_each_row_once_per_epoch(self, results, version):
        found = results["one"][version]
        (epochs,) = found["ranks"]
        assert [sorted(epoch) for epoch in epochs] == [list(range(ROWS[version]))] * EPOCHS
        assert epochs[0] != epochs[1] != epochs[2]
        assert found["accuracy"] > 0.8

    @pytest.mark.parametrize("version", [0, 1])
    def test_two_processes_of_torchdistributor_see_each_row_once_per_epoch_together(self, results, version):
        found = results["two"][version]
        first, second = found["ranks"]
        for one, other in zip(first, second, strict=True):
            assert sorted(one + other) == list(range(ROWS[version]))
            assert len(one) == len(other) + 1
        assert found["accuracy"] > 0.8

    @pytest.mark.parametrize(
        "number", range(5), ids=["a Trial", "averages", "a loop", "HorovodRunner", "TorchDistributor"]
    )
    def test_the_page_for_pytorch_users_runs_as_written(self, torch_python, tmp_path, number):
        table = coloured_table(tmp_path / "tables" / "photos", train=190)
        add_rows(table, 500, 30, "train")
        page = (CHECKOUT / "docs" / "pytorch.md").read_text(encoding="utf-8")
        blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        assert len(blocks) == 5
        for name, block in {"photos.py": blocks[0], "page.py": blocks[number]}.items():
            (tmp_path / name).write_text(block.replace('"/data/tables/photos"', repr(str(table))), encoding="utf-8")
        submit = "--master local[2] pyspark-shell"
        done = run(torch_python, [tmp_path / "page.py"], tmp_path, PYSPARK_SUBMIT_ARGS=submit)
        assert done.returncode == 0, done.stderr[-5000:]

    @pytest.mark.parametrize("name", [*RULES, "notebooks/test_notebooks.py"])
    def test_what_needs_pytorch_passes_its_tests(self, torch_python, name):
        only = "" if name in RULES else "10_pytorch"
        options = ["-q", "-n", "0", "-p", "no:cacheprovider", "-k", only, CHECKOUT / "tests" / name]
        done = run(torch_python, ["-m", "pytest", *options], CHECKOUT)
        assert done.returncode == 0, done.stdout[-5000:]
        assert "skipped" not in done.stdout.splitlines()[-1]

    def test_nothing_of_tensorflow_is_imported(self, results, torch_python):
        assert results["modules"] == []
        code = "import importlib.util as u; print([n for n in ('tensorflow', 'keras', 'horovod') if u.find_spec(n)])"
        done = subprocess.run([torch_python, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"


@pytest.mark.unit
@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="PyTorch is here")
def test_without_pytorch_its_package_is_named(digits, tmp_path):
    converter = make_delta_converter(digits, columns=["label", "number"])
    small = "lakelens.training.trials.torch_small_cnn:TorchSmallCnn"
    calls: list[Callable[[], Any]] = [
        converter.make_torch_dataloader,
        lambda: next(iter(DeltaFeed(digits).as_torch(8))),
        lambda: train(digits, entrypoint=small, tracking_uri=f"sqlite:///{tmp_path}/mlflow.db"),
        lambda: importlib.import_module("lakelens.training.trials.torch_transfer"),
    ]
    for call in calls:
        with pytest.raises(MissingDependencyError, match=r"needs PyTorch.*: pip install 'lakelens\[torch\]'"):
            call()
    assert not (tmp_path / "mlflow.db").exists()
