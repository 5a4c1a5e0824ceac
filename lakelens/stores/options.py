"""Storage options under delta-rs' names, as delta-rs takes them for logs and obstore for data files."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from typing import NamedTuple

from ..errors import InvalidArgumentError

# A value with this prefix is the name of an environment variable: the secret itself travels with no plan or pickle.
ENVIRONMENT_PREFIX = "env:"
_PREFIX = re.compile(r"^(aws|azure_storage|azure|google)_")
# By the scheme that obstore knows the store by: other stores' variables do not count.
_PREFIX_OF = {"s3": re.compile(r"^aws_"), "gs": re.compile(r"^google_"), "abfss": re.compile(r"^azure_(storage_)?")}
_FALSE = ("0", "false", "off", "no", "n")
# object_store's options of HTTP (`ClientConfigKey` of 0.13), which obstore takes in a separate argument.
_HTTP = frozenset(
    {
        *("allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "http1_only"),
        *("http2_keep_alive_interval", "http2_keep_alive_timeout", "http2_keep_alive_while_idle", "http2_only"),
        *("pool_idle_timeout", "pool_max_idle_per_host", "proxy_ca_certificate", "proxy_excludes", "proxy_url"),
        *("timeout", "user_agent"),
    }
)
# What decides about access, but not in both clients.
_NOT_IN_BOTH = ("iam_role_arn", "s3_assume_role_arn", "profile")
# Without any of these, the credentials for S3 are those of an AWS profile or of the machine.
_S3_CREDENTIALS = (
    *("access_key_id", "skip_signature", "web_identity_token_file"),
    *("container_credentials_relative_uri", "container_credentials_full_uri"),
)


class ClientOptions(NamedTuple):
    """What obstore takes."""

    store: dict[str, str]  # Options of the store, which may include some that only delta-rs knows
    http: dict[str, str]  # Options of HTTP
    retries: int | None  # Most retries of a request; None leaves that to the client
    has_credentials: bool  # Whether credentials for S3 are among the options


def delta_options(storage_options: Mapping[str, str] | None) -> dict[str, str]:
    """Returns the storage options that delta-rs takes: `env:NAME` is the environment variable NAME."""
    return {key: _resolved(key, value) for key, value in (storage_options or {}).items()}


def store_environment() -> dict[str, str]:
    """Returns the environment variables that options of a store may be in."""
    return {key: value for key, value in os.environ.items() if _PREFIX.match(key.lower())}


def client_options(scheme: str, delta: Mapping[str, str], environment: Mapping[str, str]) -> ClientOptions:
    """Returns the options of delta-rs as obstore takes them."""
    prefix = _PREFIX_OF[scheme]
    given = {key.lower(): value for key, value in delta.items()}
    keys: dict[str, str] = {}
    for key in given:
        other = keys.setdefault(prefix.sub("", key), key)
        if other != key:
            raise InvalidArgumentError(f"storage_options: {other!r} and {key!r} are one option; give one of them")
    named = {name: given[key] for name, key in keys.items()}
    refused = next((name for name in _NOT_IN_BOTH if name in named), None)
    if refused is not None:
        raise InvalidArgumentError(
            f"storage_options: the log and the data files cannot both be read with {refused!r}; name an AWS profile, "
            "which may assume a role, in the environment variable AWS_PROFILE"
        )
    retries = named.get("max_retries")
    if retries is not None and not retries.isdecimal():
        raise InvalidArgumentError(f"storage_options: max_retries is {retries!r}; it must be a whole number")
    everything = {prefix.sub("", key.lower()): value for key, value in environment.items()} | named
    credentials = {
        name for name, value in everything.items() if name != "skip_signature" or value.lower() not in _FALSE
    }
    return ClientOptions(
        store={key: value for key, value in given.items() if prefix.sub("", key) not in _HTTP},
        http={name: value for name, value in everything.items() if name in _HTTP},
        retries=None if retries is None else int(retries),
        has_credentials=not credentials.isdisjoint(_S3_CREDENTIALS),
    )


def _resolved(key: str, value: str) -> str:
    if not value.startswith(ENVIRONMENT_PREFIX):
        return value
    name = value[len(ENVIRONMENT_PREFIX) :]
    if name not in os.environ:
        raise InvalidArgumentError(
            f"storage_options: {key} is to be the environment variable {name}, which is not set on "
            f"{socket.gethostname()}; set it wherever the table is read, on every executor too"
        )
    return os.environ[name]
