"""Rules of state that is kept without pickle."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from lakelens.training.segments.training_state import NotPlainError, decode, encode, encode_attributes

pytestmark = pytest.mark.unit


def there_and_back(value):
    arrays = {}
    return decode(json.loads(json.dumps(encode(value, arrays, "x"), allow_nan=False)), arrays)


@pytest.mark.parametrize(
    "value",
    [None, True, 3, 0.1, math.inf, -math.inf, "text", [1, [2.5]], (1, (2, None)), {"a": {"float": 1}}, {}, []],
)
def test_a_plain_value_comes_back_as_it_was(value):
    back = there_and_back(value)
    assert back == value
    assert type(back) is type(value)


def test_nan_and_arrays_come_back():
    assert math.isnan(there_and_back(np.float32("nan")))
    first, second = there_and_back([np.arange(3, dtype="float32"), (np.ones((2, 2), bool),)])
    assert (first.dtype, first.tolist()) == (np.float32, [0, 1, 2])
    assert second[0].all()


@pytest.mark.parametrize("value", [object(), {1: 2}, {"a": {1}}, np.array([object()]), lambda: 0, b"bytes"])
def test_what_is_no_plain_value_is_refused(value):
    with pytest.raises(NotPlainError):
        encode(value, {}, "x")


def test_attributes_that_are_not_plain_are_left_out_with_their_arrays():
    class Holder:
        def __init__(self):
            self.wait, self.best = 2, np.float32(0.5)
            self.weights = [np.zeros(2)]
            self.mixed = [np.zeros(2), object()]
            self.params = {"steps": 1}

    arrays = {}
    found = encode_attributes(Holder(), arrays, "callback/0", frozenset({"params"}))
    assert found == {"wait": 2, "best": 0.5, "weights": [{"array": "callback/0/weights/0"}]}
    assert list(arrays) == ["callback/0/weights/0"]
