"""Google Cloud Storage: which credential and endpoint gcsfs reads with, from the options that delta-rs takes."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InvalidArgumentError

# delta-rs' names of storage options without their prefix -> what `arguments` takes, all spellings of object_store
# 0.13.2 (`GoogleConfigKey`), which deltalake 1.6.6 is built with; of several that are given, the first counts.
OPTIONS = {
    "service_account_key": "key",
    "service_account": "file",
    "service_account_path": "file",
    "application_credentials": "file",
    "skip_signature": "anon",
    "base_url": "endpoint_url",
}
PREFIXES = ("google_",)
# What delta-rs takes and gcsfs has no argument for, and what to do instead.
UNTRANSLATED = {
    "proxy_url": "set the environment variable HTTPS_PROXY, which delta-rs reads, and fsspec.session_kwargs.trust_env "
    "to true, so that gcsfs reads it too"
}
_ANONYMOUS = "anon"  # to gcsfs
# Arguments of gcsfs' writes: otherwise Google's caches may give an hour-old version of an object that everybody may
# read (https://cloud.google.com/storage/docs/caching), and a living lock would look dead.
UNCACHED = {"fixed_key_metadata": {"cache_control": "no-store"}}
CREDENTIALS = ("key", "file", "anon")


def arguments(location: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Completes the arguments of gcsfs' file system for a location.

    Args:
        location: URI in Google Cloud Storage.
        options: What `OPTIONS` gave, and arguments of gcsfs, which go first.

    Raises:
        InvalidArgumentError: If the key of a service account cannot be read, or is no JSON.
    """
    rest = dict(options)
    key, file, anonymous = rest.pop("key", None), rest.pop("file", None), rest.pop("anon", False)
    if "token" in rest:
        return rest
    if key is not None or file is not None:
        account = _account(location, file, key)
        # What object_store takes from a key for a server that stands in for Google's.
        if account.get("gcs_base_url"):
            rest.setdefault("endpoint_url", account["gcs_base_url"])
        rest["token"] = account
        anonymous = anonymous or account.get("disable_oauth")
    if anonymous:
        rest["token"] = _ANONYMOUS
    return rest


def _account(location: str, file: str | None, key: str | None) -> dict[str, Any]:
    """Reads a key here: gcsfs takes a path at which nothing is for a token, and sends it to Google."""
    try:
        account = json.loads(Path(file or "").read_bytes() if key is None else key)
    except OSError as error:
        raise InvalidArgumentError(
            f"{location}: the credentials in {file} cannot be read on {socket.gethostname()} ({error.strerror}); put "
            "the file wherever the table is read, on every executor too, or give its content as "
            "google_service_account_key"
        ) from error
    except ValueError:
        account = None
    if not isinstance(account, dict):
        where = "google_service_account_key" if key is not None else file
        raise InvalidArgumentError(  # without the value, which is a secret
            f"{location}: {where} is not the JSON of a service account's key; give the content of the file that Google "
            "has made as google_service_account_key, or its path as google_service_account"
        ) from None
    return account
