"""The examples of the public names run as they stand in the docstrings, one after the other, on one small table."""

from __future__ import annotations

import doctest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import lakelens
from lakelens.search.running.run import search

# In this order: each uses what those before it have made.
NAMES = (
    *("spark_session", "ImageTable", "Recipe", "Limits", "DeltaFeed", "keep_freed_memory", "make_delta_converter"),
    *("decode_images", "hvd", "HorovodRunner", "ExperimentConfig", "KerasTrial", "TorchTrial", "LakelensError"),
    *("train", "Job", "resume", "reproduce", "runs", "show_run", "search"),
    *("score", "evaluate", "promote", "predict_udf", "trace", "trace_run", "export_model"),
)


class Checker(doctest.OutputChecker):
    """Trainings print their progress: what an example does not show is not compared."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return not want or super().check_output(want, got, optionflags)


def example_of(name: str) -> doctest.DocTest:
    # `lakelens.search` is a package that can be called.
    value = search if name == "search" else getattr(lakelens, name)
    parser = doctest.DocTestParser()
    return parser.get_doctest(value.__doc__ or "", {}, f"lakelens.{name}", None, None)


@pytest.mark.unit
def test_every_function_and_every_class_that_is_called_has_an_example() -> None:
    of_results = {name for name in lakelens.__all__ if name.endswith(("Result", "Trace", "Details", "Summary"))}
    of_results |= {"Promotion", "Reproduction"}
    errors = {name for name in lakelens.__all__ if name.endswith(("Error", "Paused"))} - {"LakelensError"}
    errors |= {"InvalidHyperparameters"}
    # A Trial receives its context, and its base class is not written by users.
    assert set(NAMES) == set(lakelens.__all__) - of_results - errors - {"Trial", "TrialContext", "__version__"}
    assert [name for name in NAMES if not example_of(name).examples] == []


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_examples_run_as_they_stand(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    random = np.random.default_rng(0)
    for number in range(60):
        file = tmp_path / "photos" / ("cat" if number % 2 else "dog") / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(file)
    names: dict[str, Any] = {"__name__": "__main__", "lakelens": lakelens}
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.FAIL_FAST
    for name in NAMES:
        example = example_of(name)
        example.globs = names
        said: list[str] = []
        result = doctest.DocTestRunner(Checker(), optionflags=flags).run(example, out=said.append, clear_globs=False)
        assert result.failed == 0, "".join(said)
