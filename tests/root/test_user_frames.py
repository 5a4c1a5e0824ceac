"""What is left of a traceback for the user who reads it."""

from __future__ import annotations

import json

import pytest

from lakelens.errors import InvalidArgumentError
from lakelens.options import near_miss, whole_number
from lakelens.user_frames import user_traceback, with_cells

pytestmark = pytest.mark.unit


def shown(call, *arguments):
    try:
        call(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever it is
        return user_traceback(error, error.__traceback__.tb_next)
    raise AssertionError("nothing was raised")


def asks_lakelens():
    whole_number("np", "two")


def asks_json():
    json.loads("{")


def chains():
    try:
        asks_lakelens()
    except InvalidArgumentError as error:
        raise RuntimeError("no ranks") from error


def test_frames_of_lakelens_are_left_out_also_of_a_cause_and_others_stay():
    assert shown(asks_lakelens).splitlines()[-3:-1] == [
        f'  File "{__file__}", line {asks_lakelens.__code__.co_firstlineno + 1}, in asks_lakelens',
        '    whole_number("np", "two")',
    ]
    text = shown(chains)
    assert (text.count("in asks_lakelens"), text.count("in chains"), text.count("options.py")) == (1, 2, 0)
    assert "decoder.py" in shown(asks_json)


def test_an_error_of_lakelens_outside_the_users_code_needs_no_traceback_and_a_defect_keeps_all():
    assert shown(whole_number, "np", "two") == ""
    assert "in near_miss" in shown(near_miss, "np", None)


@pytest.mark.unit
def test_a_cell_of_the_notebook_is_named_as_ipython_names_it():
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    try:
        name = shell.compile.cache("def main():\n    1 / 0\n", 3)
        told = f'Traceback (most recent call last):\n  File "{name}", line 2, in main\n  File "/code.py", line 1, in f'
        assert with_cells(told) == told.replace(f'File "{name}"', "Cell In[3]")
    finally:
        InteractiveShell.clear_instance()
    assert with_cells(told) == told
