"""The forms in which a user gives an image's path to a trace."""

from __future__ import annotations

import os

import pytest

from lakelens.etl.files import local_uri
from lakelens.inference.trace import _forms

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("name", ["a.jpg", "a b é.jpg", "100%25.jpg", "#1?.jpg"])
@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "quoted", "relative"])
def test_a_local_file_is_found_by_each_of_its_paths(tmp_path, monkeypatch, name, form):
    stored = local_uri(os.fsencode(tmp_path / name))
    monkeypatch.chdir(tmp_path)
    given = {"quoted": stored, "relative": name}.get(form, form.format(tmp_path / name))
    assert stored in list(_forms(given))
    assert next(_forms(given)) == given


@pytest.mark.parametrize("path", ["s3://bucket/a b.jpg", "key://1"])
def test_any_other_path_stays_as_it_is(path):
    assert list(_forms(path)) == [path]
