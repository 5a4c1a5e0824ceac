"""How delta-rs and obstore reach a store: options, under one set of names, and clients that take them."""

from __future__ import annotations

import functools
import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from ..errors import InvalidArgumentError, LakelensError, StoreError
from ..extras import require
from ..locations import scheme_of

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


# Hadoop's names of a store -> obstore's.
SCHEMES = {
    **dict.fromkeys(("s3", "s3a", "s3n"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gs"),
    **dict.fromkeys(("abfs", "abfss", "az"), "abfss"),
}
# What clients quote of a store's answer: colours, arrows and XML; and a shared access signature, which is a secret.
_MARKUP = re.compile(r"\x1b\[[0-9;]*m|↳|<[^<>]*>")
_SIGNATURE = re.compile(r"(\bsig(?:nature)?=)[^&\s'\"]+", re.I)
_SAID = 500
# Messages of S3, Google Cloud Storage, Azure and Hadoop's clients about a bucket or container that does not exist.
_NO_BUCKET = re.compile(r"NoSuchBucket|UnknownStoreException|ContainerNotFound|(?i:bucket does not exist)")
_UNKNOWN_OPTION = re.compile(r"Configuration key: '([^']+)'")
# Clients that are kept open, each with its connections.
_MOST_CLIENTS = 32
# The process that has used a client, by the client's package: each has its own threads.
_users: dict[str, set[int]] = {}


def client_of(location: str, storage_options: Mapping[str, str] | None) -> tuple[Any, str]:
    """Returns the client for a location in an object store, and the location's key in its bucket or container."""
    require_known_store(location)
    require(f"{location}: reading an object store", "obstore")
    require_no_fork(location, "obstore")
    authority, _, key = location.partition("://")[2].partition("/")
    options = tuple(sorted(delta_options(storage_options).items()))
    bucket = f"{SCHEMES[scheme_of(location)]}://{authority}"
    return _open(bucket, options, tuple(sorted(store_environment().items()))), key.strip("/")


def require_known_store(location: str) -> None:
    """Checks the scheme of a location in an object store."""
    if scheme_of(location) not in SCHEMES:
        raise unknown_store(location)


def require_no_fork(location: str, package: str) -> None:
    """Checks that this process is not the fork of one that has used a client, whose threads a fork does not copy."""
    users = _users.setdefault(package, set())
    users.add(os.getpid())
    if len(users) > 1:
        raise StoreError(
            f"{location}: this process is the fork of one that has used {package}, whose threads a fork does "
            "not copy. Start it with 'forkserver' or 'spawn': multiprocessing.get_context('forkserver'), or "
            "DataLoader(..., multiprocessing_context='forkserver') in PyTorch"
        )


@functools.lru_cache(maxsize=_MOST_CLIENTS)
def _open(bucket: str, given: tuple[tuple[str, str], ...], environment: tuple[tuple[str, str], ...]) -> Any:
    from obstore.exceptions import UnknownConfigurationKeyError
    from obstore.store import from_url

    options = client_options(scheme_of(bucket), dict(given), dict(environment))
    config: Any = dict(options.store)  # obstore types each store's options, which it also takes as plain texts
    settings: dict[str, Any] = {"client_options": options.http}
    if "@" in bucket:  # as for delta-rs, the account in the location counts
        config = {key: value for key, value in config.items() if not key.endswith("account_name")}
    if options.retries is not None:
        settings["retry_config"] = {"max_retries": options.retries}
    if bucket.startswith("s3:") and not options.has_credentials:
        settings["credential_provider"] = _aws_credentials(bucket)
    while True:
        try:
            return from_url(bucket, config=config, **settings)
        except UnknownConfigurationKeyError as error:
            found = _UNKNOWN_OPTION.search(str(error))
            if found is None or config.pop(found[1], None) is None:  # else it is an option of delta-rs alone
                raise
        except Exception as error:  # of a value: obstore has no class for that
            raise InvalidArgumentError(f"storage_options: {bucket} cannot be read with them: {_told(error)}") from error


def _aws_credentials(bucket: str) -> Any:
    """Finds the credentials of a profile or of the machine, as delta-rs does; None leaves the search to obstore."""
    require(f"{bucket}: reading S3 without a key in storage_options or the environment", "boto3")
    import boto3
    from botocore.exceptions import BotoCoreError
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        session = boto3.Session()
    except BotoCoreError as error:
        raise InvalidArgumentError(f"{bucket}: AWS_PROFILE cannot be used: {error}") from error
    return None if session.get_credentials() is None else Boto3CredentialProvider(session)


def unknown_store(location: str) -> InvalidArgumentError:
    """Makes the error about a location whose scheme is of no store that lakelens reads."""
    scheme = scheme_of(location)
    known = ", ".join(sorted(SCHEMES))
    instead = "; write abfss://container@account.dfs.core.windows.net/... for the same files"
    return InvalidArgumentError(
        f"{location}: unsupported scheme {scheme!r}; lakelens reads {known} and disks"
        f"{instead if scheme in ('wasb', 'wasbs') else ''}"
    )


@contextmanager
def reaching(location: str) -> Iterator[None]:
    """Turns what the client of an object store raises into our error; a missing file stays as it is."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, ImportError, LakelensError):
        raise
    except Exception as error:  # clients share no base class
        raise store_error(location, error) from error


def store_error(location: str, error: Exception) -> StoreError:
    """Makes the error about a store that cannot be reached or refuses, from what its client says."""
    if lacks_bucket(str(error)):
        return no_bucket(location)
    return StoreError(
        f"{location} cannot be reached in its store: {_told(error)}. Check the location, the network, and the access "
        "in storage_options or the environment"
    )


def _told(error: Exception) -> str:
    text = _MARKUP.sub(" ", _SIGNATURE.sub(r"\1...", f"{type(error).__name__}: {error}"))
    text = " ".join(text.partition("Debug source:")[0].split()).removeprefix("OSError: ")
    text = text.partition(" RequestId:")[0].rstrip(".")  # behind the request's id, Azure repeats everything
    return text if len(text) <= _SAID else f"{text[:_SAID]}..."


def lacks_bucket(said: str) -> bool:
    """Returns whether a client's message means that a bucket or container does not exist."""
    return _NO_BUCKET.search(said) is not None


def no_bucket(location: str) -> StoreError:
    """Makes the error about a bucket or container that is not there."""
    return StoreError(
        f"{location}: there is no such bucket or container. Create it, or check its name, and the endpoint and account "
        "in storage_options or the environment"
    )
