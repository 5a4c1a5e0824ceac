"""How locations and storage options of object stores are turned into fsspec's; pure path logic."""

from __future__ import annotations

import os

import pytest
from snapshots import open_snapshot

from lakelens.errors import InvalidArgumentError, StoreError
from lakelens.stores.data_files import PROTOCOLS, by_folder, file_system, local_form, names_in, reaching, read_bytes
from lakelens.stores.options import delta_options, fsspec_options

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/data/t", "/data/t"),
        ("dbfs:/tables/t", "/dbfs/tables/t"),
        ("dbfs:///tables/t", "/dbfs/tables/t"),
        ("dbfs:/Volumes/main/default/files/t", "/Volumes/main/default/files/t"),
        ("s3://bucket/t", None),
        ("s3a://bucket/t", None),
        ("gs://bucket/t", None),
        ("abfss://container@account.dfs.core.windows.net/t", None),
    ],
)
def test_what_is_on_a_disk_has_a_path_and_dbfs_is_where_databricks_mounts_it(location, path):
    assert local_form(location) == path


@pytest.mark.parametrize(
    ("scheme", "protocol", "package"),
    [
        ("s3", "s3", "s3fs"),
        ("s3a", "s3", "s3fs"),
        ("s3n", "s3", "s3fs"),
        ("gs", "gcs", "gcsfs"),
        ("abfs", "abfs", "adlfs"),
        ("abfss", "abfs", "adlfs"),
        ("az", "abfs", "adlfs"),
    ],
)
def test_hadoops_schemes_are_those_of_fsspec(scheme, protocol, package):
    assert PROTOCOLS[scheme] == (protocol, package)


def test_a_scheme_that_no_store_has_is_refused_with_those_that_are_known():
    with pytest.raises(
        InvalidArgumentError, match=r"no store of scheme 'hdfs' is known; lakelens reads abfs, abfss, .*s3a"
    ):
        file_system("hdfs://name/t", {})
    for locate in (lambda place: file_system(place, {}), open_snapshot):
        with pytest.raises(InvalidArgumentError, match=r"'wasbs' is known; .*; write abfss://container@account\.dfs"):
            locate("wasbs://images@lake.blob.core.windows.net/t")


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


@pytest.mark.parametrize("location", ["s3://bucket/t", "az://c/t", "abfss://c@lake.dfs.core.windows.net/t"])
def test_a_store_that_cannot_be_reached_is_not_taken_for_one_without_the_table(location):
    names = ("aws_endpoint", "azure_endpoint", "allow_http", "aws_region", "aws_access_key_id", "aws_secret_access_key")
    values = ("http://127.0.0.1:9", "http://127.0.0.1:9", "true", "r", "K", "S")
    access = {**dict(zip(names, values, strict=True)), "account_name": "a", "account_key": "Szhi", "max_retries": "0"}
    with pytest.raises(StoreError, match=rf"{location} cannot be reached in its store: .*Connection refused"):
        open_snapshot(location, None, access)


@pytest.mark.parametrize(
    ("protocol", "given", "wanted"),
    [
        (
            "s3",
            {"aws_access_key_id": "K", "AWS_SECRET_ACCESS_KEY": "S", "aws_session_token": "T", "region": "eu-west-1"},
            {"key": "K", "secret": "S", "token": "T", "client_kwargs": {"region_name": "eu-west-1"}},
        ),
        (
            "s3",
            {"Access_Key_Id": "K", "secret_access_key": "S", "aws_token": "T"},
            {"key": "K", "secret": "S", "token": "T"},
        ),
        ("s3", {"token": "T", "default_region": "r"}, {"token": "T", "client_kwargs": {"region_name": "r"}}),
        ("s3", {"default_region": "old", "region": "new"}, {"client_kwargs": {"region_name": "new"}}),
        ("s3", {"endpoint": "http://h:1", "skip_signature": "yes"}, {"endpoint_url": "http://h:1", "anon": True}),
        ("s3", {"aws_request_payer": "true", "aws_profile": "P"}, {"requester_pays": True, "profile": "P"}),
        ("s3", {"aws_role_arn": "R", "fsspec.anon": "false"}, {"anon": False}),
        ("s3", {"virtual_hosted_style_request": "1"}, {"config_kwargs": {"s3": {"addressing_style": "virtual"}}}),
        ("s3", {"aws_virtual_hosted_style_request": "no"}, {"config_kwargs": {"s3": {"addressing_style": "path"}}}),
        ("s3", {"allow_invalid_certificates": "true"}, {"client_kwargs": {"verify": False}}),
        ("s3", {"aws_endpoint_url": "http://h:1", "aws_allow_http": "true"}, {"endpoint_url": "http://h:1"}),
        ("s3", {"aws_skip_signature": "true"}, {"anon": True}),
        ("s3", {"fsspec.config_kwargs.max_pool_connections": "50"}, {"config_kwargs": {"max_pool_connections": "50"}}),
        ("gcs", {"google_service_account": "/key.json"}, {"file": "/key.json"}),
        (
            "abfs",
            {"azure_storage_account_name": "A", "azure_storage_account_key": "K", "azure_storage_tenant_id": "T"},
            {"account_name": "A", "account_key": "K", "tenant_id": "T"},
        ),
        ("abfs", {"azure_storage_sas_token": "S"}, {"sas_token": "S"}),
        ("abfs", {"AZURE_STORAGE_ACCESS_KEY": "K", "endpoint": "E"}, {"account_key": "K", "endpoint": "E"}),
        ("abfs", {"authority_id": "T", "azure_client_id": "C"}, {"tenant_id": "T", "client_id": "C"}),
    ],
)
def test_storage_options_of_delta_rs_are_translated_for_fsspec(protocol, given, wanted, monkeypatch):
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    assert fsspec_options(protocol, given) == wanted


def test_options_may_stay_in_the_environment(monkeypatch):
    monkeypatch.setenv("LAKE_SECRET", "s3cr3t")
    options = {"aws_secret_access_key": "env:LAKE_SECRET", "fsspec.anon": "false", "aws_region": "us-east-1"}
    assert fsspec_options("s3", options)["secret"] == "s3cr3t"
    assert delta_options(options) == {"aws_secret_access_key": "s3cr3t", "aws_region": "us-east-1"}
    monkeypatch.delenv("LAKE_SECRET")
    with pytest.raises(InvalidArgumentError, match=r"aws_secret_access_key is to be .* variable LAKE_SECRET"):
        delta_options(options)


def test_files_are_grouped_by_the_folder_that_is_listed(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_bytes(b"1")
    grouped = by_folder(["/t/a/x", "/t/b/y", "/t/a/z", "s3://b/t/w"])
    assert grouped == {"/t/a": ["x", "z"], "/t/b": ["y"], "s3://b/t": ["w"]}
    assert names_in(str(tmp_path / "a"), {}) == {"x"}
    assert names_in(str(tmp_path / "gone"), {}) == names_in(str(tmp_path / "a" / "x"), {}) == set()
    assert read_bytes(str(tmp_path / "a" / "x"), {}) == b"1"


@pytest.mark.parametrize(
    ("protocol", "given", "words"),
    [
        ("s3", {"aws_role_arn": "R"}, r"aws_role_arn is for delta-rs alone; .* environment variable AWS_ROLE_ARN"),
        ("s3", {"AWS_IAM_ROLE_ARN": "R"}, r"aws_iam_role_arn .*aws_profile.*; or give .* as fsspec\.NAME"),
        ("s3", {"proxy_url": "http://p"}, r"proxy_url .*HTTPS_PROXY"),
        ("s3", {"aws_skip_signature": "maybe"}, r"aws_skip_signature is 'maybe'; it must be true or false"),
        ("abfs", {"bearer_token": "T"}, r"bearer_token .*give an account key, a SAS token or a service principal"),
        ("abfs", {"azure_federated_token_file": "/t"}, r"AZURE_FEDERATED_TOKEN_FILE instead"),
    ],
)
def test_an_option_that_decides_about_access_and_that_fsspec_lacks_is_refused(protocol, given, words):
    with pytest.raises(InvalidArgumentError, match=words):
        fsspec_options(protocol, given)
