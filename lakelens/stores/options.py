"""Storage options: what delta-rs takes, translated into the arguments of fsspec's file systems or refused."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

from ..errors import InvalidArgumentError
from . import azure, google

# delta-rs' names of storage options, which users already have, -> fsspec's; a dot leads into a nested mapping. All
# spellings of object_store 0.13.2 (`AmazonS3ConfigKey`), which deltalake 1.6.6 is built with; of several that are
# given, the first counts.
_OPTIONS: dict[str, Mapping[str, str]] = {
    "s3": {
        "aws_access_key_id": "key",
        "access_key_id": "key",
        "aws_secret_access_key": "secret",
        "secret_access_key": "secret",
        "aws_session_token": "token",
        "aws_token": "token",
        "session_token": "token",
        "token": "token",
        "aws_profile": "profile",
        "aws_endpoint_url_s3": "endpoint_url",
        "aws_endpoint_url": "endpoint_url",
        "aws_endpoint": "endpoint_url",
        "endpoint_url": "endpoint_url",
        "endpoint": "endpoint_url",
        "aws_region": "client_kwargs.region_name",
        "region": "client_kwargs.region_name",
        "aws_default_region": "client_kwargs.region_name",
        "default_region": "client_kwargs.region_name",
        "aws_skip_signature": "anon",
        "skip_signature": "anon",
        "aws_request_payer": "requester_pays",
        "request_payer": "requester_pays",
        "aws_virtual_hosted_style_request": "config_kwargs.s3.addressing_style",
        "virtual_hosted_style_request": "config_kwargs.s3.addressing_style",
        "aws_allow_invalid_certificates": "client_kwargs.verify",
        "allow_invalid_certificates": "client_kwargs.verify",
    },
    "gcs": google.OPTIONS,
    "abfs": azure.OPTIONS,
}
_AWS_ENVIRONMENT = "set the environment variable {} instead, which delta-rs and s3fs both read"
# What delta-rs takes, and decides who is let in or how the store is reached, but fsspec's file system has no argument
# for; and what to do instead.
_UNTRANSLATED: dict[str, Mapping[str, str]] = {
    "s3": {
        **{
            prefix + name: _AWS_ENVIRONMENT.format(f"AWS_{name.upper()}")
            for prefix in ("aws_", "")
            for name in (
                "role_arn",
                "web_identity_token_file",
                "container_credentials_relative_uri",
                "container_credentials_full_uri",
                "container_authorization_token_file",
                "endpoint_url_sts",
            )
        },
        "aws_iam_role_arn": "name a profile that assumes the role (aws_profile)",
        "aws_s3_assume_role_arn": "name a profile that assumes the role (aws_profile)",
        "aws_proxy_url": _AWS_ENVIRONMENT.format("HTTPS_PROXY"),
        "proxy_url": _AWS_ENVIRONMENT.format("HTTPS_PROXY"),
        "aws_sse_customer_key_base64": "let S3 keep the key (SSE-S3 or SSE-KMS)",
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
    named = {key.lower(): value for key, value in given.items() if not key.startswith(FSSPEC_PREFIX)}
    own = {key[len(FSSPEC_PREFIX) :]: value for key, value in given.items() if key.startswith(FSSPEC_PREFIX)}
    if not own:  # else the user has said what fsspec is to do
        _refuse_untranslated(protocol, named)
    if protocol in _BY_STORE:
        named = {**_BY_STORE[protocol].from_environment(named), **named}
    options: dict[str, Any] = {}
    for key, name in reversed(list(_OPTIONS.get(protocol, {}).items())):
        if key in named:
            _put(options, name, _FLAGS[name][_flag(key, named[key])] if name in _FLAGS else named[key])
    for name, value in own.items():
        _put(options, name, _BOOLEANS[value.lower()] if value.lower() in ("true", "false") else value)
    return options


def file_system_arguments(protocol: str, location: str, storage_options: Mapping[str, str] | None) -> dict[str, Any]:
    """Returns the arguments of fsspec's file system for a location.

    Raises:
        InvalidArgumentError: As `fsspec_options`, or if the options do not say how to reach the location.
    """
    options = fsspec_options(protocol, storage_options)
    return _BY_STORE[protocol].arguments(location, options) if protocol in _BY_STORE else options


def _refuse_untranslated(protocol: str, named: Mapping[str, str]) -> None:
    for key, instead in _UNTRANSLATED.get(protocol, {}).items():
        if key in named:
            raise InvalidArgumentError(
                f"storage_options: {key} is for delta-rs alone; data files are read through fsspec, which has no such "
                f"option for {protocol}. Do without it: {instead}; or give fsspec's own options as {FSSPEC_PREFIX}NAME"
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
