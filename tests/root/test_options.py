"""Keywords of calls: an unknown one is an error that names the nearest one."""

from __future__ import annotations

from inspect import signature

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
_CALLS = (
    *(lakelens.score, lakelens.evaluate, lakelens.predict_udf, lakelens.make_delta_converter),
    *(lakelens.decode_images, lakelens.DeltaFeed, lakelens.HorovodRunner, lakelens.ImageTable, Recipe),
    *(promote, staleness),
)


@pytest.mark.parametrize("call", _CALLS, ids=lambda call: call.__name__)
def test_a_misspelt_option_is_refused(call):
    with pytest.raises(UnknownOptionError, match=f"^{call.__name__} has no option 'vresion'; ") as caught:
        call(vresion=1)
    assert isinstance(caught.value, TypeError)  # as Python's own error is


@pytest.mark.parametrize(
    ("given", "hint"),
    [("factr", "did you mean 'factor'?"), ("sise", "did you mean 'size'?"), ("xyz", "known are factor, size, value")],
)
def test_the_nearest_name_is_suggested_or_all_are_listed(given, hint):
    assert suggestion(given, ["value", "factor", "size"]) == hint


def test_an_option_of_a_recipe_or_of_a_configuration_is_known_to_the_call_that_takes_it():
    with pytest.raises(UnknownOptionError, match="has no option 'sise'; did you mean 'size'"):
        ImageTable.ingest(_TABLE, "photos", sise=64)
    with pytest.raises(UnknownOptionError, match="has no option 'image_sise'; did you mean 'image_size'"):
        lakelens.train("photos", image_sise=64)


def test_every_method_of_a_table_with_arguments_refuses_a_misspelt_one():
    methods = {name: method for name, method in vars(ImageTable).items() if callable(method)}
    for name, method in methods.items():
        if not name.startswith("_") and len(signature(method).parameters) > 1:
            source = ("photos",) if "source" in signature(method).parameters else ()
            with pytest.raises(UnknownOptionError, match=f"{name} has no option 'vresion'"):
                method(_TABLE, *source, vresion=1)


def test_a_function_keeps_its_signature_and_its_other_errors():
    @named_options
    def scaled(value: int, *, factor: int = 2) -> int:
        """Multiplies."""
        return value * factor

    assert (scaled(3, factor=4), scaled(value=3), scaled.__doc__) == (12, 6, "Multiplies.")
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        scaled()


def test_a_recipe_and_limits_may_be_objects_and_keywords_change_the_recipe():
    options = {"recipe": Recipe(size=64, store="raw_rgb"), "split_seed": 7, "limits": Limits(max_bytes=5)}
    request = request_of("photos", "class_folders", options)
    assert Recipe().with_changes(**request.recipe_changes) == Recipe(size=64, store="raw_rgb", split_seed=7)
    assert request.limits == Limits(max_bytes=5)
    for name in ("recipe", "limits"):
        with pytest.raises(InvalidArgumentError, match=rf"{name}={{}} is no (Recipe|Limits): give lakelens\."):
            request_of("photos", "class_folders", {name: {}})
