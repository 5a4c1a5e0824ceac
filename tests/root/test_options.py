"""Keywords of calls: an unknown one is an error that names the nearest one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import lakelens
from lakelens.errors import InvalidArgumentError, UnknownOptionError
from lakelens.etl.images.recipe import Limits, Recipe
from lakelens.etl.ingest.options import request_of
from lakelens.options import named_options, suggestion

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("call", "name", "hint"),
    [
        (lambda: request_of("photos", "class_folders", {"sise": 64}), "sise", "did you mean 'size'"),
        (lambda: lakelens.train("photos", image_sise=64), "image_sise", "did you mean 'image_size'"),
        (lambda: lakelens.score(None, "m", "t", splits="a"), "splits", "did you mean 'split'"),
        (lambda: lakelens.DeltaFeed("t", sead=1), "sead", "did you mean 'seed'"),
        (lambda: lakelens.HorovodRunner(np=-1, environ={}), "environ", "did you mean 'env'"),
        (lambda: lakelens.HorovodRunner(np=-1, xyz=1), "xyz", "known are driver_log_verbosity, driver_port, env"),
    ],
)
def test_a_misspelt_option_is_refused_with_the_nearest_one(call: Callable[[], Any], name: str, hint: str) -> None:
    with pytest.raises(UnknownOptionError, match=f"has no option '{name}'; {hint}") as caught:
        call()
    assert isinstance(caught.value, TypeError)  # as Python's own error is


def test_a_function_keeps_its_signature_and_its_other_errors() -> None:
    @named_options
    def scaled(value: int, *, factor: int = 2) -> int:
        """Multiplies."""
        return value * factor

    assert (scaled(3, factor=4), scaled(value=3), scaled.__doc__) == (12, 6, "Multiplies.")
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        scaled()
    assert suggestion("factr", ["factor", "value"]) == "did you mean 'factor'?"


def test_a_recipe_and_limits_may_be_objects_and_keywords_change_the_recipe() -> None:
    options = {"recipe": Recipe(size=64, store="raw_rgb"), "seed": 7, "limits": Limits(max_bytes=5)}
    request = request_of("photos", "class_folders", options)
    assert Recipe().with_changes(**request.recipe_changes) == Recipe(size=64, store="raw_rgb", seed=7)
    assert request.limits == Limits(max_bytes=5)
    for name in ("recipe", "limits"):
        with pytest.raises(InvalidArgumentError, match=rf"{name}={{}} is no (Recipe|Limits): give lakelens\."):
            request_of("photos", "class_folders", {name: {}})
