"""What a stream of scores refuses before it starts, without a session."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lakelens.errors import SessionError
from lakelens.inference.scoring.stream import _check_run

pytestmark = pytest.mark.unit


def test_a_connect_session_is_refused_before_it_starts():
    session = type("Session", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(SessionError, match="this is a Spark Connect session"):
        _check_run(SimpleNamespace(spark=session), "/checkpoint")
