"""Frames on a rank's line are cut where they end, and bounded."""

from __future__ import annotations

import struct

import pytest

from lakelens.errors import LaunchError
from lakelens.training.rank.frames import MAX_BODY_BYTES, FrameReader, Kind, pack

pytestmark = pytest.mark.unit


def test_frames_are_cut_wherever_the_stream_is_cut():
    stream = pack(Kind.READY) + pack(Kind.MESSAGE, b"x" * 1000) + pack(Kind.RAISED, {"a": "ü"})
    for step in (1, 3, 7, 5000):
        reader, frames = FrameReader(), []
        for start in range(0, len(stream), step):
            frames += list(reader.feed(stream[start : start + step]))
        assert [(frame.kind, len(frame.body)) for frame in frames] == [(1, 0), (4, 1000), (6, 15)]
        assert frames[2].json() == {"a": "ü"}


def test_a_frame_that_announces_too_much_is_refused_before_it_is_read():
    with pytest.raises(LaunchError, match="announces 4294967295 bytes; at most 1048576"):
        list(FrameReader().feed(struct.pack(">BI", 1, 0xFFFFFFFF)))
    with pytest.raises(LaunchError, match="too large"):
        pack(Kind.MESSAGE, bytes(MAX_BODY_BYTES + 1))


@pytest.mark.parametrize("body", [b"", b"[1]", b"\x80\x04K\x01.", b"{"])
def test_a_body_that_is_no_json_object_is_an_error(body):
    with pytest.raises(LaunchError):
        next(iter(FrameReader().feed(pack(Kind.EVENT, body)))).json()
