"""Which tables a run's model has scored, as tags on the run that `score` writes."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from .run_values import TAG_LIMIT
from .runs import open_client

logger = logging.getLogger(__name__)

SCORING_TAG_PREFIX = "lakelens.scored."


@dataclass(frozen=True)
class Scoring:
    """One version of an image table whose predictions are in a predictions table."""

    predictions: str  # Location of the predictions table
    version: int  # Version of the predictions table that the last scoring left
    table: str  # Location of the image table
    table_version: int  # The version of it that was scored
    scored_at: str  # When, in ISO 8601

    @property
    def tag(self) -> str:
        """The tag's name: scoring the same again replaces what was recorded."""
        place = "\n".join((self.predictions, self.table, str(self.table_version)))
        return SCORING_TAG_PREFIX + hashlib.sha256(place.encode()).hexdigest()[:16]


def record_scoring(tracking_uri: str, run_id: str, scoring: Scoring) -> None:
    """Writes a scoring on its run; the scoring itself is done, so that a store which refuses is a warning."""
    text = json.dumps(asdict(scoring))
    try:
        if len(text) > TAG_LIMIT:
            raise ValueError(f"the tables' paths take {len(text)} characters, a tag {TAG_LIMIT}")
        open_client(tracking_uri).set_tag(run_id, scoring.tag, text)
    except Exception as error:  # noqa: BLE001  stores raise their own SDKs' errors
        logger.warning("run %s does not record that %s was scored: %s", run_id, scoring.table, error)


def scorings_of(tags: Mapping[str, str]) -> list[Scoring]:
    """Reads the scorings in a run's tags, the latest first; other tags are skipped."""
    found = []
    for name, text in tags.items():
        if name.startswith(SCORING_TAG_PREFIX):
            try:
                found.append(Scoring(**json.loads(text)))
            except (ValueError, TypeError):
                logger.warning("tag %s is not the record of a scoring: %s", name, text[:200])
    return sorted(found, key=lambda scoring: scoring.scored_at, reverse=True)
