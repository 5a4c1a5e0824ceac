"""Rules of rows that the driver sends."""

from __future__ import annotations

import pytest

from lakelens.errors import SessionError
from lakelens.etl.spark.writing_session import CONNECT_BYTES, local_frame


class Session:
    """Of a Connect session, what `local_frame` needs before it sends rows."""

    __module__ = "pyspark.sql.connect.session"

    def createDataFrame(self, frame: object, ddl: str) -> tuple[object, str]:
        return frame, ddl


@pytest.mark.unit
def test_more_rows_than_a_connect_session_takes_are_refused_before_they_are_sent() -> None:
    parts = [(bytearray(CONNECT_BYTES // 2),)] * 2
    with pytest.raises(SessionError, match=r"128\.0 MB of local rows, .*takes at most 128 MB; give the file by a path"):
        local_frame(Session(), parts, "content BINARY")  # type: ignore[arg-type]
    assert local_frame(Session(), parts[:1], "content BINARY")[1] == "content BINARY"  # type: ignore[arg-type, index]
