"""Which of some runs MLflow has deleted, asked of stores that may be out of reach."""

from __future__ import annotations

import logging
from collections.abc import Collection

from ..errors import LakelensError, ModelNotFoundError
from .run_listing import get_run, open_existing_store
from .runs import as_tracking_errors, resolve_tracking_uri, without_password

logger = logging.getLogger(__name__)


def deleted_runs(tracking_uri: str, run_ids: Collection[str]) -> set[str]:
    """Returns those of some runs that MLflow has deleted.

    A run that the store does not know is none of them: the URI may lead to another store from here. A store that does
    not answer, or is another machine's file, has deleted none, with a warning.

    Args:
        tracking_uri: The store, without its password; the one that this process uses gives it.
        run_ids: The runs.
    """
    own = resolve_tracking_uri()
    deleted: set[str] = set()
    try:
        uri, client = open_existing_store(own if without_password(own) == tracking_uri else tracking_uri)
        with as_tracking_errors(uri, "look up runs"):
            for run_id in run_ids:
                try:
                    if get_run(client, run_id).info.lifecycle_stage == "deleted":
                        deleted.add(run_id)
                except ModelNotFoundError:
                    continue
    except LakelensError as error:
        logger.warning("nobody can tell which runs MLflow has deleted, so each protects its version: %s", error)
    return deleted
