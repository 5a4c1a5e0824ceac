"""The launcher's end of a rank's line."""

from __future__ import annotations

import socket

import pytest

from lakelens.training.rank.frames import FrameReader, Kind
from lakelens.training.runner.processes.rank_process import RankProcess

pytestmark = pytest.mark.unit


def test_what_a_rank_does_not_read_stops_nobody_and_arrives_whole_when_it_does():
    process = object.__new__(RankProcess)
    process._unsent = bytearray()
    process.line, theirs = socket.socketpair()
    process.line.setblocking(False)
    with process.line, theirs:
        theirs.settimeout(60)
        bodies = [{"number": number, "text": "x" * 400_000} for number in range(5)]
        for body in bodies:
            process.send(Kind.TELL, body)
        reader, frames = FrameReader(), []
        while len(frames) < 5:
            frames += list(reader.feed(theirs.recv(65536)))
            process.flush()
        assert [frame.json() for frame in frames] == bodies
