"""Which credential and endpoint storage options stand for in Google Cloud Storage; no store is asked."""

from __future__ import annotations

import json
import os

import pytest

from lakelens.errors import InvalidArgumentError
from lakelens.stores import google
from lakelens.stores.options import fsspec_options

pytestmark = pytest.mark.unit

TABLE = "gs://images/t"
ACCOUNT = {"type": "service_account", "client_email": "a@b", "private_key": "SECRET"}
KEY = json.dumps(ACCOUNT)


@pytest.fixture(autouse=True)
def _no_google_in_the_environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("GOOGLE_")]:
        monkeypatch.delenv(name)


def arguments(**options: str) -> dict:
    return google.arguments(TABLE, fsspec_options("gcs", options))


@pytest.mark.parametrize("name", ["google_service_account_key", "GOOGLE_SERVICE_ACCOUNT_KEY", "service_account_key"])
def test_the_content_of_a_key_is_taken_under_each_name_of_delta_rs(name):
    assert arguments(**{name: KEY}) == {"token": ACCOUNT}


@pytest.mark.parametrize(
    "name",
    [
        "google_service_account",
        "service_account",
        "google_service_account_path",
        "service_account_path",
        "google_application_credentials",
        "application_credentials",
    ],
)
def test_the_file_of_a_key_is_taken_under_each_name_of_delta_rs(tmp_path, name):
    (tmp_path / "key.json").write_text(KEY)
    assert arguments(**{name: str(tmp_path / "key.json")}) == {"token": ACCOUNT}


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"google_skip_signature": "true"}, {"token": "anon"}),
        ({"skip_signature": "1", "service_account_key": KEY}, {"token": "anon"}),
        ({"google_skip_signature": "false"}, {}),
        ({"base_url": "http://h:1", "google_skip_signature": "true"}, {"token": "anon", "endpoint_url": "http://h:1"}),
        ({"fsspec.token": "cloud", "google_service_account_key": KEY}, {"token": "cloud"}),
        ({"google_bucket": "images"}, {}),
    ],
)
def test_options_of_delta_rs_become_those_of_gcsfs(options, wanted):
    assert arguments(**options) == wanted


def test_a_key_for_a_server_that_stands_in_for_googles_names_its_endpoint():
    key = json.dumps({"gcs_base_url": "http://h:1", "disable_oauth": True, "client_email": "", "private_key": ""})
    assert arguments(google_service_account_key=key) == {"token": "anon", "endpoint_url": "http://h:1"}
    assert arguments(google_service_account_key=key, google_base_url="http://h:2")["endpoint_url"] == "http://h:2"


def test_what_delta_rs_takes_from_the_environment_counts_for_data_files_too(monkeypatch):
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", KEY)
    assert arguments() == {"token": ACCOUNT}
    assert arguments(google_base_url="http://h:1") == {"token": ACCOUNT, "endpoint_url": "http://h:1"}
    assert arguments(google_skip_signature="true") == {"token": "anon"}


def test_googles_own_variable_is_left_to_gcsfs_which_reads_every_kind_of_credentials(monkeypatch, tmp_path):
    (tmp_path / "federated.json").write_text('{"type": "external_account"}')
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "federated.json"))
    assert arguments() == {}


def test_a_key_that_is_none_is_refused_without_showing_it():
    with pytest.raises(
        InvalidArgumentError, match=r"gs://images/t: google_service_account_key is not the JSON"
    ) as caught:
        arguments(google_service_account_key="SECRET")
    assert "SECRET" not in str(caught.value)


def test_the_file_of_a_key_that_is_not_there_or_none_is_refused_by_its_path(tmp_path):
    with pytest.raises(InvalidArgumentError, match=r"in /no/key.json cannot be read on .*every executor"):
        arguments(google_service_account="/no/key.json")
    (tmp_path / "key.json").write_text("[]")
    with pytest.raises(InvalidArgumentError, match=r"key\.json is not the JSON of a service account's key"):
        arguments(google_service_account=str(tmp_path / "key.json"))


def test_an_option_that_gcsfs_lacks_is_refused_with_what_to_do_instead():
    with pytest.raises(InvalidArgumentError, match=r"google_proxy_url is for delta-rs alone; .*HTTPS_PROXY.*trust_env"):
        arguments(google_proxy_url="http://proxy")
