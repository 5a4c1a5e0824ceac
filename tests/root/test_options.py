"""Keywords of calls: an unknown one is an error that names the nearest one."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest

import lakelens
from lakelens.errors import InvalidArgumentError, UnknownOptionError
from lakelens.etl.image_table import ImageTable
from lakelens.etl.images.recipe import Limits, Recipe
from lakelens.etl.ingest.results import request_of
from lakelens.inference.promotion import promote, staleness
from lakelens.options import named_options, suggestion

pytestmark = pytest.mark.unit

_TABLE = lakelens.ImageTable(None, "photos")


@pytest.mark.parametrize(
    ("call", "name", "hint"),
    [
        (lambda: request_of("photos", "class_folders", {"sise": 64}), "sise", "did you mean 'size'"),
        (lambda: lakelens.train("photos", image_sise=64), "image_sise", "did you mean 'image_size'"),
        (lambda: lakelens.score(None, "m", "t", splits="a"), "splits", "did you mean 'split'"),
        (lambda: lakelens.DeltaFeed("t", sead=1), "sead", "did you mean 'seed'"),
        (lambda: lakelens.HorovodRunner(np=-1, environ={}), "environ", "did you mean 'env'"),
        (lambda: lakelens.evaluate(None, "m", "t", slcies=()), "slcies", "did you mean 'slices'"),
        (lambda: lakelens.predict_udf(None, "m", bach_size=1), "bach_size", "did you mean 'batch_bytes'"),
        (lambda: lakelens.make_delta_converter("t", versoin=1), "versoin", "did you mean 'version'"),
        (lambda: lakelens.decode_images(8, 8, image_colum="x"), "image_colum", "did you mean 'image_column'"),
        (
            lambda: promote("m", "n", if_beter="ece"),
            "if_beter",
            "did you mean 'if_better'",
        ),
        (
            lambda: staleness("n", "t", min_rows=1),
            "min_rows",
            "did you mean 'min_new_rows'",
        ),
        (lambda: lakelens.ImageTable(None, "t", storage_option={}), "storage_option", "did you mean 'storage_options'"),
        (lambda: Recipe(sise=64), "sise", "did you mean 'size'"),
        (lambda: lakelens.HorovodRunner(np=-1, xyz=1), "xyz", "known are driver_log_verbosity, driver_port, env"),
    ],
)
def test_a_misspelt_option_is_refused_with_the_nearest_one(call: Callable[[], Any], name: str, hint: str) -> None:
    with pytest.raises(UnknownOptionError, match=f"has no option '{name}'; {hint}") as caught:
        call()
    assert isinstance(caught.value, TypeError)  # as Python's own error is


def test_every_method_of_a_table_with_arguments_refuses_a_misspelt_one() -> None:
    methods = {name: method for name, method in vars(ImageTable).items() if callable(method)}
    for name, method in methods.items():
        if not name.startswith("_") and len(signature(method).parameters) > 1:
            source = ("photos",) if "source" in signature(method).parameters else ()
            with pytest.raises(UnknownOptionError, match=f"{name} has no option 'vresion'"):
                method(_TABLE, *source, vresion=1)


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
    options = {"recipe": Recipe(size=64, store="raw_rgb"), "split_seed": 7, "limits": Limits(max_bytes=5)}
    request = request_of("photos", "class_folders", options)
    assert Recipe().with_changes(**request.recipe_changes) == Recipe(size=64, store="raw_rgb", split_seed=7)
    assert request.limits == Limits(max_bytes=5)
    for name in ("recipe", "limits"):
        with pytest.raises(InvalidArgumentError, match=rf"{name}={{}} is no (Recipe|Limits): give lakelens\."):
            request_of("photos", "class_folders", {name: {}})
