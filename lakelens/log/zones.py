"""Times that name versions: how they are written, and the zone of those that name none, which is Spark's."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ..errors import InvalidArgumentError

SETTING = "spark.sql.session.timeZone"
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?(?P<sign>[+-])(?P<hours>\d{1,2})(?::?(?P<minutes>\d{2}))?")
_MODULES = ("pyspark.sql", "pyspark.sql.connect.session")


def time_in(text: str) -> datetime | None:
    """Reads a time as ISO 8601 writes it; None for another text."""
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None


def with_zone(version: str | datetime, zone: Callable[[], tzinfo]) -> str | datetime:
    """Gives a zone to a version that is a time without one, and leaves every other as it is."""
    moment = time_in(version) if isinstance(version, str) else version
    return version if moment is None or moment.tzinfo is not None else moment.replace(tzinfo=zone())


def zone_named(name: str) -> tzinfo:
    """Returns a zone by the name that Spark has for it: a region, or an offset such as `+02:00`."""
    offset = _OFFSET.fullmatch(name)
    if offset is not None:
        shift = timedelta(hours=int(offset["hours"]), minutes=int(offset["minutes"] or 0))
        return timezone(-shift if offset["sign"] == "-" else shift)
    try:
        return timezone.utc if name in ("Z", "UTC") else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidArgumentError(
            f"{SETTING} = {name!r} is not a zone that Python knows; give the time with an offset, such as +02:00"
        ) from error


def zone_of_session() -> tzinfo | None:
    """Returns the zone of the Spark session of this thread or process; None if there is no session."""
    for name in _MODULES:
        sessions: Any = getattr(sys.modules.get(name), "SparkSession", None)
        session = None if sessions is None else sessions.getActiveSession()
        session = getattr(sessions, "_instantiatedSession", None) if session is None else session
        if session is not None:
            return zone_named(session.conf.get(SETTING))
    return None
