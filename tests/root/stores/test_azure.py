"""Which account, endpoint and credential a location in Azure and storage options stand for; no store is asked."""

from __future__ import annotations

import os

import pytest

from lakelens.errors import InvalidArgumentError
from lakelens.stores import azure
from lakelens.stores.options import fsspec_options

pytestmark = pytest.mark.unit

IN_ACCOUNT = "abfss://images@lake.dfs.core.windows.net/t"


@pytest.fixture(autouse=True)
def _no_azure_in_the_environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("AZURE_", "AZURITE_"))]:
        monkeypatch.delenv(name)


def arguments(location: str, **options: str) -> dict:
    return azure.arguments(location, fsspec_options("abfs", options))


@pytest.mark.parametrize(
    ("location", "options", "account", "endpoint"),
    [
        (IN_ACCOUNT, {}, "lake", "https://lake.blob.core.windows.net"),
        (IN_ACCOUNT.replace("abfss", "abfs"), {}, "lake", "https://lake.blob.core.windows.net"),
        (IN_ACCOUNT.replace("dfs", "blob"), {}, "lake", "https://lake.blob.core.windows.net"),
        (IN_ACCOUNT, {"account_name": "other"}, "lake", "https://lake.blob.core.windows.net"),
        ("az://images/t", {"account_name": "lake"}, "lake", "https://lake.blob.core.windows.net"),
        ("abfs://images/t@x", {"azure_storage_account_name": "lake"}, "lake", "https://lake.blob.core.windows.net"),
        ("abfss://w@onelake.dfs.fabric.microsoft.com/t", {}, "onelake", "https://onelake.blob.fabric.microsoft.com"),
        ("az://w/t", {"account_name": "a", "use_fabric_endpoint": "1"}, "a", "https://a.blob.fabric.microsoft.com"),
        (IN_ACCOUNT, {"azure_endpoint": "http://127.0.0.1:9/lake/"}, "lake", "http://127.0.0.1:9/lake"),
        ("az://c/t", {"use_emulator": "true"}, "devstoreaccount1", "http://127.0.0.1:10000/devstoreaccount1"),
    ],
)
def test_the_account_is_the_locations_and_else_that_of_the_options(location, options, account, endpoint):
    given = arguments(location, account_key="K", **options)
    assert given["account_name"] == account
    assert given["connection_string"] == f"BlobEndpoint={endpoint};AccountName={account};AccountKey=K"


def test_a_location_without_an_account_is_refused_with_what_to_write():
    with pytest.raises(InvalidArgumentError, match=r"az://images/t names no storage account; write abfss://container@"):
        arguments("az://images/t", account_key="K")


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"sas_key": "?sv=1&sig=a=="}, {"connection_string": "BlobEndpoint={};SharedAccessSignature=sv=1&sig=a=="}),
        ({"skip_signature": "true", "account_key": "K"}, {"connection_string": "BlobEndpoint={}", "anon": True}),
        ({"fsspec.connection_string": "mine", "account_key": "K"}, {"connection_string": "mine"}),
        (
            {"client_id": "C", "client_secret": "S", "tenant_id": "T"},
            {"client_id": "C", "client_secret": "S", "tenant_id": "T", "account_host": "lake.blob.core.windows.net"},
        ),
        (
            {"client_id": "C", "tenant_id": "T"},
            {
                "managed_identity_client_id": "C",
                "workload_identity_client_id": "C",
                "workload_identity_tenant_id": "T",
                "account_host": "lake.blob.core.windows.net",
            },
        ),
        ({}, {"account_host": "lake.blob.core.windows.net"}),
    ],
)
def test_each_credential_of_delta_rs_is_one_for_adlfs(options, wanted):
    given = arguments(IN_ACCOUNT, **options)
    filled = {
        name: value.format("https://lake.blob.core.windows.net") if isinstance(value, str) else value
        for name, value in wanted.items()
    }
    assert {name: given[name] for name in wanted} == filled
    assert "client_id" not in given or "client_secret" in given


def test_the_emulators_own_key_is_used_only_there(monkeypatch):
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", "http://127.0.0.1:77")
    given = arguments("az://c/t", use_emulator="true")["connection_string"]
    assert given.startswith(
        "BlobEndpoint=http://127.0.0.1:77/devstoreaccount1;AccountName=devstoreaccount1;AccountKey=E"
    )
    assert "connection_string" not in arguments(IN_ACCOUNT)


def test_an_endpoint_without_tls_is_for_keys_and_signatures_alone():
    with pytest.raises(InvalidArgumentError, match=r"http://h:1, which is without TLS, only an account key or a SAS"):
        arguments(IN_ACCOUNT, azure_endpoint="http://h:1", **{"client_id": "C", "client_secret": "S"})


def test_every_name_that_delta_rs_reads_in_the_environment_counts(monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCESS_KEY", "K")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "https://e")
    monkeypatch.setenv("ACCOUNT_NAME", "not Azure's")
    assert arguments(IN_ACCOUNT)["connection_string"] == "BlobEndpoint=https://e;AccountName=lake;AccountKey=K"
    given = arguments(IN_ACCOUNT, **{"sas_token": "sig=1"})
    assert given["connection_string"] == "BlobEndpoint=https://e;SharedAccessSignature=sig=1"
