"""Which client, bucket and key a location and storage options stand for; no store is asked."""

from __future__ import annotations

import os

import pytest
from snapshots import open_snapshot

from lakelens.errors import InvalidArgumentError, StoreError
from lakelens.stores.clients import client_of, client_options, reaching
from lakelens.stores.data_files import read_bytes

pytestmark = pytest.mark.unit

IN_ACCOUNT = "abfss://images@lake.dfs.core.windows.net/t"
KEY = "a2V5"


@pytest.fixture(autouse=True)
def _no_store_in_the_environment(monkeypatch):
    pytest.importorskip("obstore", reason="obstore not installed: pip install 'lakelens[dev]'")
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_", "GOOGLE_"))]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("location", "options", "config", "key"),
    [
        ("s3a://images/t/é %20", {"aws_access_key_id": "K", "SECRET_ACCESS_KEY": "S"}, {"bucket": "images"}, "t/é %20"),
        ("s3n://b/t", {"skip_signature": "true", "region": "r"}, {"bucket": "b", "region": "r"}, "t"),
        ("gcs://b/t/", {"google_skip_signature": "true"}, {"bucket": "b"}, "t"),
        (IN_ACCOUNT, {"account_key": KEY}, {"account_name": "lake", "container_name": "images"}, "t"),
        (IN_ACCOUNT, {"account_key": KEY, "azure_storage_account_name": "other"}, {"account_name": "lake"}, "t"),
        ("az://images/t", {"account_name": "lake", "account_key": KEY}, {"account_name": "lake"}, "t"),
        ("abfs://c@x.dfs.fabric.microsoft.com/t", {"sas_token": "s=1"}, {"use_fabric_endpoint": "true"}, "t"),
    ],
)
def test_a_location_and_the_options_of_delta_rs_stand_for_one_bucket_and_key(location, options, config, key):
    client, found = client_of(location, options)
    assert found == key
    assert {name: client.config[name] for name in config} == config


def test_options_of_http_are_the_clients_under_each_name_and_from_the_environment(monkeypatch):
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "K")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "S")
    client, _ = client_of("s3://b/t", {"timeout": "5s", "aws_connect_timeout": "1s", "max_retries": "2"})
    assert client.client_options == {"allow_http": "true", "timeout": "5s", "connect_timeout": "1s"}
    assert client.retry_config["max_retries"] == 2


@pytest.mark.parametrize(
    ("scheme", "given", "environment", "has"),
    [
        ("s3", {"skip_signature": "false"}, {}, False),
        ("s3", {"aws_skip_signature": "TRUE"}, {}, True),
        ("s3", {}, {"AWS_ACCESS_KEY_ID": "K"}, True),
        ("s3", {}, {"GOOGLE_SKIP_SIGNATURE": "true"}, False),
        ("gs", {}, {"GOOGLE_SKIP_SIGNATURE": "true"}, True),
        ("abfss", {}, {"AZURE_STORAGE_SKIP_SIGNATURE": "true"}, True),
    ],
)
def test_only_credentials_of_the_store_itself_that_say_so_are_credentials(scheme, given, environment, has):
    assert client_options(scheme, given, environment).has_credentials is has


def test_a_client_is_kept_until_an_option_or_the_environment_changes(monkeypatch):
    options = {"skip_signature": "true"}
    first, _ = client_of("s3://b/t", options)
    assert client_of("s3a://b/u", options)[0] is first
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert client_of("s3://b/t", options)[0] is not first


@pytest.mark.parametrize(
    ("location", "options", "words"),
    [
        ("s3://b/t", {"aws_iam_role_arn": "R"}, r"with 'iam_role_arn'; name an AWS profile.*AWS_PROFILE"),
        ("s3://b/t", {"region": "r", "aws_region": "r"}, r"'aws_region' and 'region' are one option; give one"),
        ("s3://b/t", {"aws_profile": "P"}, r"with 'profile'; name .* environment variable AWS_PROFILE"),
        ("s3://b/t", {"max_retries": "many"}, r"max_retries is 'many'; it must be a whole number"),
        ("s3://b/t", {"aws_skip_signature": "maybe"}, r"s3://b cannot be read with them: .*\"maybe\" as boolean"),
        ("gs://b/t", {"google_service_account": "/no/key.json"}, r"gs://b cannot .*/no/key\.json"),
        ("az://images/t", {"account_key": KEY}, r"abfss://images cannot .*Account must be specified"),
        ("hdfs://name/t", {}, r"unsupported scheme 'hdfs'; lakelens reads abfs, abfss, .*s3a"),
    ],
)
def test_what_does_not_stand_for_a_client_is_refused_with_the_reason(location, options, words):
    with pytest.raises(InvalidArgumentError, match=words):
        client_of(location, options)


def test_a_key_that_is_refused_is_not_shown():
    with pytest.raises(InvalidArgumentError) as caught:
        client_of("gs://b/t", {"google_service_account_key": "SECRET"})
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("locate", [lambda place: client_of(place, {}), open_snapshot])
def test_the_old_scheme_of_azure_is_refused_with_the_one_to_write(locate):
    with pytest.raises(
        InvalidArgumentError, match=r"unsupported scheme 'wasbs'; .*; write abfss://container@account\.dfs"
    ):
        locate("wasbs://images@lake.blob.core.windows.net/t")


@pytest.mark.parametrize("read", [read_bytes, lambda location, access: open_snapshot(location, None, access)])
@pytest.mark.parametrize("location", ["s3://bucket/t", "az://c/t", IN_ACCOUNT])
def test_a_file_or_table_in_a_store_that_cannot_be_reached_is_not_taken_for_one_that_is_gone(read, location):
    names = ("aws_endpoint", "azure_endpoint", "allow_http", "aws_region", "aws_access_key_id", "aws_secret_access_key")
    values = ("http://127.0.0.1:9", "http://127.0.0.1:9", "true", "r", "K", "S")
    access = {**dict(zip(names, values, strict=True)), "account_name": "a", "account_key": KEY, "max_retries": "0"}
    with pytest.raises(StoreError, match=rf"{location} cannot be reached in its store: "):
        read(location, access)


def test_what_a_stores_client_raises_becomes_an_error_that_names_the_location_and_no_secret():
    said = (
        "Error\n \x1b[31m↳\x1b[0m GET http://h/t?sv=1&sig=s3cr3t&x=1\n<Error><Code>AuthorizationFailure</Code></Error>"
    )
    with pytest.raises(StoreError) as raised, reaching("az://c/t"):
        raise RuntimeError(said)
    assert str(raised.value).startswith(
        "az://c/t cannot be reached in its store: RuntimeError: Error GET http://h/t?sv=1&sig=...&x=1 "
        "AuthorizationFailure. Check the location"
    )
    assert isinstance(raised.value, OSError)


@pytest.mark.parametrize("error", [FileNotFoundError(2, "gone"), InvalidArgumentError("ours")])
def test_a_file_that_is_gone_and_an_error_of_ours_stay_what_they_are(error):
    with pytest.raises(type(error)) as raised, reaching("az://c/t"):
        raise error
    assert raised.value is error
