"""Opening data files wherever a table lives: mapped into memory on a disk, through fsspec in an object store."""

from __future__ import annotations

import os
import re
import socket
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa

from . import azure, google
from .errors import InvalidArgumentError, LakelensError, MissingDependencyError, StoreError
from .locations import has_scheme

# Hadoop's names of a store -> fsspec's, and the package that brings it.
PROTOCOLS = {
    "s3": ("s3", "s3fs"),
    "s3a": ("s3", "s3fs"),
    "s3n": ("s3", "s3fs"),
    "gs": ("gcs", "gcsfs"),
    "gcs": ("gcs", "gcsfs"),
    "abfs": ("abfs", "adlfs"),
    "abfss": ("abfs", "adlfs"),
    "az": ("abfs", "adlfs"),
}
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
# What clients quote of a store's answer: colours, arrows and XML; and a shared access signature, which is a secret.
_MARKUP = re.compile(r"\x1b\[[0-9;]*m|↳|<[^<>]*>")
_SIGNATURE = re.compile(r"(\bsig(?:nature)?=)[^&\s'\"]+", re.I)
_SAID = 500
# Options with this prefix are for fsspec alone, under its own names.
FSSPEC_PREFIX = "fsspec."
# A value with this prefix is the name of an environment variable: the secret itself travels with no plan or pickle.
ENVIRONMENT_PREFIX = "env:"


def local_form(location: str) -> str | None:
    """Gives the path on this machine's disks of a location, or None for one in an object store.

    `dbfs:/x` is `/dbfs/x`, where Databricks mounts it.
    """
    if location.startswith("dbfs:"):
        return "/dbfs/" + location[len("dbfs:") :].lstrip("/")
    return None if has_scheme(location) else location


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
    """Gives the storage options that delta-rs takes: resolved, without those for fsspec alone."""
    given = storage_options or {}
    return resolved({key: value for key, value in given.items() if not key.startswith(FSSPEC_PREFIX)})


def fsspec_options(protocol: str, storage_options: Mapping[str, str]) -> dict[str, Any]:
    """Translates storage options into the arguments of fsspec's file system for `protocol`.

    Raises:
        InvalidArgumentError: If an option that decides about access has no counterpart there, or a flag is none.
    """
    given = resolved(storage_options)
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


def file_system(location: str, storage_options: Mapping[str, str]) -> tuple[Any, str]:
    """Gives fsspec's file system for a location in an object store, and the location's path in it.

    Raises:
        InvalidArgumentError: If the scheme is of no store that lakelens reads, or the options do not say how to.
        MissingDependencyError: If the package for the store is not installed.
    """
    import fsspec

    scheme = location.split(":", 1)[0].lower()
    if scheme not in PROTOCOLS:
        raise unknown_store(location)
    protocol, package = PROTOCOLS[scheme]
    try:
        options = fsspec_options(protocol, storage_options)
        if protocol in _BY_STORE:
            options = _BY_STORE[protocol].arguments(location, options)
        with reaching(location):
            system = fsspec.filesystem(protocol, **options)
    except ImportError as error:
        raise MissingDependencyError(
            f"{location}: reading {scheme}:// needs {package}: pip install {package}"
        ) from error
    return system, system._strip_protocol(f"{protocol}:{location.split(':', 1)[1]}")


def unknown_store(location: str) -> InvalidArgumentError:
    """Makes the error about a location whose scheme is of no store that lakelens reads."""
    scheme = location.split(":", 1)[0].lower()
    known = ", ".join(sorted(PROTOCOLS))
    instead = "; write abfss://container@account.dfs.core.windows.net/... for the same files"
    return InvalidArgumentError(
        f"{location}: no store of scheme {scheme!r} is known; lakelens reads {known} and disks"
        f"{instead if scheme in ('wasb', 'wasbs') else ''}"
    )


@contextmanager
def reaching(location: str) -> Iterator[None]:
    """Turns what the client of an object store raises into an error of ours; that a file is not there stays as it is.

    Raises:
        StoreError: In place of any other error, which is its cause.
    """
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, ImportError, LakelensError):
        raise
    except Exception as error:  # each store's client has exceptions of its own
        raise store_error(location, error) from error


def store_error(location: str, error: Exception) -> StoreError:
    """Makes the error about a store that cannot be reached or refuses, from what its client says."""
    said = _MARKUP.sub(" ", _SIGNATURE.sub(r"\1...", f"{type(error).__name__}: {error}"))
    # Azure tells everything again behind the request's id.
    said = " ".join(said.split()).removeprefix("OSError: ").partition(" RequestId:")[0].rstrip(".")
    said = said if len(said) <= _SAID else f"{said[:_SAID]}..."
    return StoreError(
        f"{location} cannot be reached in its store: {said}. Check the location, the network, and the access in "
        "storage_options or the environment"
    )


class _Reached:
    """A file in an object store, whose errors are ours."""

    def __init__(self, file: Any, location: str) -> None:
        self._file = file
        self._location = location

    def read(self, size: int = -1) -> bytes:
        with reaching(self._location):
            return bytes(self._file.read(size))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextmanager
def open_location(location: str, storage_options: Mapping[str, str], size: int | None = None) -> Iterator[Any]:
    """Opens a data file for pyarrow's Parquet reader.

    Args:
        location: Path or URI.
        storage_options: Access to an object store.
        size: Bytes of the file, which saves an object store the question.
    """
    path = local_form(location)
    if path is not None:
        with pa.memory_map(path) as source:
            yield source
        return
    system, path = file_system(location, storage_options)
    with reaching(location):
        # pyarrow asks for whole column chunks; a cache would only read further ahead and copy.
        file = system.open(path, "rb", size=size, cache_type="none")
    with file as source:
        yield _Reached(source, location)


def read_bytes(location: str, storage_options: Mapping[str, str], end: int | None = None) -> bytes:
    """Reads a whole small file, or its first bytes.

    Args:
        location: Path or URI.
        storage_options: Access to an object store.
        end: Number of bytes; None reads all.

    Raises:
        FileNotFoundError: If there is no such file.
        StoreError: If the store cannot be reached or refuses.
    """
    path = local_form(location)
    if path is not None:
        with Path(path).open("rb") as file:
            return file.read(-1 if end is None else end)
    system, path = file_system(location, storage_options)
    with reaching(location):
        return bytes(system.cat_file(path, end=end))


def write_bytes(location: str, data: bytes, storage_options: Mapping[str, str]) -> None:
    """Writes a whole small file: a reader sees the old one or all of the new one, also where the writer dies.

    Args:
        location: Path or URI; on a disk its folder is there.
        data: What the file holds.
        storage_options: Access to an object store.
    """
    path = local_form(location)
    if path is None:
        system, key = file_system(location, storage_options)
        with reaching(location):
            system.pipe_file(key, data)
        return
    temporary = Path(path).with_name(f".{Path(path).name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def remove_file(location: str, storage_options: Mapping[str, str]) -> None:
    """Removes a file.

    Raises:
        FileNotFoundError: If there is no such file; stores that do not tell say nothing.
        StoreError: If the store cannot be reached or refuses.
    """
    path = local_form(location)
    if path is not None:
        Path(path).unlink()
        return
    system, key = file_system(location, storage_options)
    with reaching(location):
        system.rm_file(key)


def by_folder(locations: Iterable[str]) -> dict[str, list[str]]:
    """Groups files by the folder that holds them, so that folders are listed rather than files looked up."""
    folders: dict[str, list[str]] = defaultdict(list)
    for location in locations:
        folder, _, name = location.rpartition("/")
        folders[folder].append(name)
    return dict(folders)


def names_in(folder: str, storage_options: Mapping[str, str]) -> set[str]:
    """Lists the names in a folder; none when there is no such folder."""
    path = local_form(folder)
    try:
        if path is not None:
            return {entry.name for entry in Path(path).iterdir()}
        system, path = file_system(folder, storage_options)
        system.invalidate_cache(path)  # what others have written since
        with reaching(folder):
            return {PurePosixPath(name).name for name in system.ls(path, detail=False)}
    except (FileNotFoundError, NotADirectoryError):
        return set()
