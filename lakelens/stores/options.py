"""Storage options: what delta-rs takes, translated into the arguments of fsspec's file systems or refused."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..errors import InvalidArgumentError
from . import azure, google

# delta-rs' names of storage options, which users already have, without their prefix, -> fsspec's; a dot leads into a
# nested mapping. All spellings of object_store 0.13.2 (`AmazonS3ConfigKey`), which deltalake 1.6.6 is built with; of
# several that are given, the first counts.
_OPTIONS: dict[str, Mapping[str, str]] = {
    "s3": {
        "access_key_id": "key",
        "secret_access_key": "secret",
        "session_token": "token",
        "token": "token",
        "profile": "profile",
        "endpoint_url_s3": "endpoint_url",
        "endpoint_url": "endpoint_url",
        "endpoint": "endpoint_url",
        "region": "client_kwargs.region_name",
        "default_region": "client_kwargs.region_name",
        "skip_signature": "anon",
        "request_payer": "requester_pays",
        "virtual_hosted_style_request": "config_kwargs.s3.addressing_style",
        "allow_invalid_certificates": "client_kwargs.verify",
    },
    "gcs": google.OPTIONS,
    "abfs": azure.OPTIONS,
}
# Each name may be written with such a prefix, or without.
_PREFIXES = {"s3": ("aws_",), "gcs": google.PREFIXES, "abfs": azure.PREFIXES}
_AWS_ENVIRONMENT = "set the environment variable {} instead, which delta-rs and s3fs both read"
_IN_AWS_ENVIRONMENT = (
    "role_arn",
    "web_identity_token_file",
    "container_credentials_relative_uri",
    "container_credentials_full_uri",
    "container_authorization_token_file",
    "endpoint_url_sts",
)
# What delta-rs takes, and decides who is let in or how the store is reached, but fsspec's file system has no argument
# for; and what to do instead.
_UNTRANSLATED: dict[str, Mapping[str, str]] = {
    "s3": {
        **{name: _AWS_ENVIRONMENT.format(f"AWS_{name.upper()}") for name in _IN_AWS_ENVIRONMENT},
        "iam_role_arn": "name a profile that assumes the role (aws_profile)",
        "s3_assume_role_arn": "name a profile that assumes the role (aws_profile)",
        "proxy_url": _AWS_ENVIRONMENT.format("HTTPS_PROXY"),
        "sse_customer_key_base64": "let S3 keep the key (SSE-S3 or SSE-KMS)",
    },
    "gcs": google.UNTRANSLATED,
    "abfs": azure.UNTRANSLATED,
}
# Stores whose options alone do not make the arguments of fsspec's file system.
_BY_STORE = {"gcs": google, "abfs": azure}
# Options that are true or false to delta-rs, with what they are to fsspec.
_FLAGS: dict[str, dict[bool, Any]] = {
    "anon": {True: True, False: False},
    "requester_pays": {True: True, False: False},
    "use_emulator": {True: True, False: False},
    "use_fabric_endpoint": {True: True, False: False},
    "config_kwargs.s3.addressing_style": {True: "virtual", False: "path"},
    "client_kwargs.verify": {True: False, False: True},
}
_BOOLEANS = {
    **dict.fromkeys(("1", "true", "on", "yes", "y"), True),
    **dict.fromkeys(("0", "false", "off", "no", "n"), False),
}
# Options with this prefix are for fsspec alone, under its own names.
FSSPEC_PREFIX = "fsspec."
# A value with this prefix is the name of an environment variable: the secret itself travels with no plan or pickle.
ENVIRONMENT_PREFIX = "env:"


class _Given(NamedTuple):
    """An option as it was given."""

    key: str
    value: str


def resolved(storage_options: Mapping[str, str]) -> dict[str, str]:
    """Puts in what storage options leave to the environment of the process: `env:NAME` is the variable NAME.

    Raises:
        InvalidArgumentError: If the variable is not set here.
    """
    return {key: _resolved(key, value) for key, value in storage_options.items()}


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


def delta_options(storage_options: Mapping[str, str] | None) -> dict[str, str]:
    """Returns the storage options that delta-rs takes: resolved, without those for fsspec alone."""
    given = storage_options or {}
    return resolved({key: value for key, value in given.items() if not key.startswith(FSSPEC_PREFIX)})


def fsspec_options(protocol: str, storage_options: Mapping[str, str] | None) -> dict[str, Any]:
    """Translates storage options into the arguments of fsspec's file system for `protocol`.

    Raises:
        InvalidArgumentError: If an option that decides about access has no counterpart there, or a flag is none.
    """
    given = resolved(storage_options or {})
    named = _without_prefixes(
        protocol, {key: value for key, value in given.items() if not key.startswith(FSSPEC_PREFIX)}
    )
    own = {key[len(FSSPEC_PREFIX) :]: value for key, value in given.items() if key.startswith(FSSPEC_PREFIX)}
    if not own:  # else the user has said what fsspec is to do
        _refuse_untranslated(protocol, named)
    if protocol in _BY_STORE:
        named |= _from_environment(protocol, named)
    options: dict[str, Any] = {}
    for key, name in reversed(list(_OPTIONS.get(protocol, {}).items())):
        if key in named:
            _put(options, name, _FLAGS[name][_flag(*named[key])] if name in _FLAGS else named[key].value)
    for name, value in own.items():
        _put(options, name, _BOOLEANS[value.lower()] if value.lower() in ("true", "false") else value)
    return options


def _without_prefixes(protocol: str, given: Mapping[str, str]) -> dict[str, _Given]:
    """Returns options by their names without a prefix; of two spellings, the one with a prefix counts."""
    bare: dict[str, _Given] = {}
    for key, value in sorted(given.items(), key=lambda item: item[0].lower().startswith(_PREFIXES.get(protocol, ()))):
        name = key.lower()
        prefix = next((prefix for prefix in _PREFIXES.get(protocol, ()) if name.startswith(prefix)), "")
        bare[name.removeprefix(prefix)] = _Given(name, value)
    return bare


def _from_environment(protocol: str, given: Mapping[str, _Given]) -> dict[str, _Given]:
    """Lists the options that delta-rs would take from the environment beside the ones that are given.

    The file systems of fsspec know fewer names of variables. Credentials are taken only if none is given.
    GOOGLE_APPLICATION_CREDENTIALS is left to gcsfs, which reads every kind of credentials from it.
    """
    names, credentials = _OPTIONS[protocol], set(_BY_STORE[protocol].CREDENTIALS)
    taken = {names[key] for key in given if key in names}
    taken |= credentials if taken & credentials else set()
    prefixes = tuple(prefix.upper() for prefix in _PREFIXES[protocol])
    variables = {key: value for key, value in os.environ.items() if key.startswith(prefixes)}
    variables.pop("GOOGLE_APPLICATION_CREDENTIALS", None)
    found = _without_prefixes(protocol, variables)
    return {key: value for key, value in found.items() if key in names and names[key] not in taken}


def file_system_arguments(protocol: str, location: str, storage_options: Mapping[str, str] | None) -> dict[str, Any]:
    """Returns the arguments of fsspec's file system for a location.

    Raises:
        InvalidArgumentError: As `fsspec_options`, or if the options do not say how to reach the location.
    """
    options = fsspec_options(protocol, storage_options)
    return _BY_STORE[protocol].arguments(location, options) if protocol in _BY_STORE else options


def _refuse_untranslated(protocol: str, named: Mapping[str, _Given]) -> None:
    for name, instead in _UNTRANSLATED.get(protocol, {}).items():
        if name in named:
            raise InvalidArgumentError(
                f"storage_options: {named[name].key} is for delta-rs alone; data files are read through fsspec, which "
                f"has no such option for {protocol}. Do without it: {instead}; or give fsspec's own options as "
                f"{FSSPEC_PREFIX}NAME"
            )


def _flag(key: str, value: str) -> bool:
    if value.lower() not in _BOOLEANS:
        raise InvalidArgumentError(f"storage_options: {key} is {value!r}; it must be true or false")
    return _BOOLEANS[value.lower()]


def _put(options: dict[str, Any], name: str, value: Any) -> None:
    *parents, last = name.split(".")
    for parent in parents:
        options = options.setdefault(parent, {})
    options[last] = value
