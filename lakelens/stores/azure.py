"""Azure's blob storage: which account a location is of, at which endpoint, and with which credential adlfs reads it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from ..errors import InvalidArgumentError

# delta-rs' names of storage options without their prefix -> adlfs', all spellings of object_store 0.13.2
# (`AzureConfigKey`), which deltalake 1.6.6 is built with; of several that are given, the first counts.
OPTIONS = {
    "account_name": "account_name",
    "account_key": "account_key",
    "access_key": "account_key",
    "master_key": "account_key",
    "sas_token": "sas_token",
    "sas_key": "sas_token",
    "client_id": "client_id",
    "client_secret": "client_secret",
    "tenant_id": "tenant_id",
    "authority_id": "tenant_id",
    "skip_signature": "anon",
    "endpoint": "endpoint",
    "use_emulator": "use_emulator",
    "use_fabric_endpoint": "use_fabric_endpoint",
}
PREFIXES = ("azure_storage_", "azure_")
_IN_ENVIRONMENT = "set the environment variable {} instead, which delta-rs and adlfs both read"
_OTHER_CREDENTIAL = "give an account key, a SAS token or a service principal (client id, client secret and tenant id)"
_BY_CLIENT_ID = "name the managed identity by its client id"
# What delta-rs takes and adlfs has no argument for, and what to do instead.
UNTRANSLATED = {
    "token": _OTHER_CREDENTIAL,
    "bearer_token": _OTHER_CREDENTIAL,
    "authority_host": _IN_ENVIRONMENT.format("AZURE_AUTHORITY_HOST"),
    "federated_token_file": _IN_ENVIRONMENT.format("AZURE_FEDERATED_TOKEN_FILE"),
    "msi_endpoint": _IN_ENVIRONMENT.format("IDENTITY_ENDPOINT"),
    "identity_endpoint": _IN_ENVIRONMENT.format("IDENTITY_ENDPOINT"),
    "object_id": _BY_CLIENT_ID,
    "msi_resource_id": _BY_CLIENT_ID,
    "fabric_token_service_url": _OTHER_CREDENTIAL,
    "fabric_session_token": _OTHER_CREDENTIAL,
    "allow_invalid_certificates": "trust the issuer of the certificate (SSL_CERT_FILE)",
    "proxy_url": _IN_ENVIRONMENT.format("HTTPS_PROXY"),
}
CREDENTIALS = ("account_key", "sas_token", "client_id", "client_secret", "tenant_id", "anon")
# container@account.host, as Hadoop writes it; without an account, as fsspec does.
_HOST = re.compile(r"^[A-Za-z]+://[^/@]+@([^/.]+)\.(dfs|blob)\.(core\.windows\.net|fabric\.microsoft\.com)(/|\Z)", re.I)
# https://learn.microsoft.com/azure/storage/common/storage-connect-azurite: everybody's account and key.
_EMULATOR_ACCOUNT = "devstoreaccount1"
_EMULATOR_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_EMULATOR_URL = "http://127.0.0.1:10000"


def arguments(location: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Completes the arguments of adlfs' file system for a location.

    Args:
        location: URI in Azure.
        options: What `OPTIONS` gave, flags as booleans, and arguments of adlfs.

    Raises:
        InvalidArgumentError: If neither the location nor the options name the account, or adlfs cannot use the
            credential at the endpoint.
    """
    rest = dict(options)
    endpoint, emulator = rest.pop("endpoint", None), rest.pop("use_emulator", False)
    fabric = rest.pop("use_fabric_endpoint", False)
    if "connection_string" in rest:  # which to adlfs is everything
        return rest
    found = _HOST.match(location)
    account = found[1] if found else rest.get("account_name") or (_EMULATOR_ACCOUNT if emulator else None)
    if account is None:
        raise InvalidArgumentError(
            f"{location} names no storage account; write abfss://container@account.dfs.core.windows.net/..., or give "
            "azure_storage_account_name in storage_options"
        )
    rest["account_name"] = account
    if emulator:
        endpoint = f"{os.environ.get('AZURITE_BLOB_STORAGE_URL', _EMULATOR_URL).rstrip('/')}/{account}"
        if not any(rest.get(name) for name in CREDENTIALS):
            rest["account_key"] = _EMULATOR_KEY
    elif endpoint is None:
        is_fabric = fabric or bool(found and found[3].lower() == "fabric.microsoft.com")
        endpoint = f"https://{account}.blob.{'fabric.microsoft.com' if is_fabric else 'core.windows.net'}"
    return _with_credential(location, endpoint.rstrip("/"), rest)


def _with_credential(location: str, endpoint: str, rest: dict[str, Any]) -> dict[str, Any]:
    # A connection string alone reaches an endpoint without TLS, and no other one in the environment overrides it.
    if rest.get("anon"):
        for name in CREDENTIALS[:-1]:
            rest.pop(name, None)
        return {**rest, "connection_string": f"BlobEndpoint={endpoint}"}
    if rest.get("account_key"):
        text = f"BlobEndpoint={endpoint};AccountName={rest['account_name']};AccountKey={rest['account_key']}"
        return {**rest, "connection_string": text}
    if rest.get("sas_token"):
        token = rest["sas_token"].lstrip("?")
        return {**rest, "connection_string": f"BlobEndpoint={endpoint};SharedAccessSignature={token}"}
    if not endpoint.startswith("https://"):
        raise InvalidArgumentError(
            f"{location}: at {endpoint}, which is without TLS, only an account key or a SAS token is used; give one in "
            "storage_options (azure_storage_account_key, azure_storage_sas_token), or an endpoint with https"
        )
    if rest.get("client_id") and not rest.get("client_secret"):
        client, tenant = rest.pop("client_id"), rest.pop("tenant_id", None)
        rest.update(managed_identity_client_id=client, workload_identity_client_id=client)
        if tenant:
            rest["workload_identity_tenant_id"] = tenant
    return {**rest, "account_host": endpoint.removeprefix("https://")}
