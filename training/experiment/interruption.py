"""Interrupts a training from another process: `lakelens runs pause|kill RUN`."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

from ...errors import RankFailedError, TrainingKilled
from ...tracking.requests import requests_heard
from ...tracking.runs import RunReference
from ..runner.placement.conversation import Controls

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def obeying_requests(run: RunReference, controls: Controls) -> Iterator[None]:
    """Carries out requests of other processes (`lakelens runs pause|kill RUN`) while the body trains the run."""
    killed = threading.Event()

    def obey(asked: str) -> None:
        logger.warning("%s of run %s was requested by another process", asked, run.run_id)
        if asked == "pause":
            controls.tell({"pause": True})
            return
        killed.set()
        controls.end()

    try:
        with requests_heard(run, obey):
            yield
    except RankFailedError as error:
        if not killed.is_set():
            raise
        raise TrainingKilled(f"run {run.run_id} was killed by another process") from error
