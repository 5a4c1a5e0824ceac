"""Which rank is to blame: events and a clock in, a verdict out."""

from __future__ import annotations

import pytest

from lakelens.training.runner.processes.failure_verdict import JobRecord
from lakelens.training.runner.processes.failure_words import describe_end, is_consequence
from lakelens.training.runner.processes.rank_record import RankEvent

pytestmark = pytest.mark.unit

HOROVOD_DOWN = {
    "type": "horovod.common.exceptions.HorovodInternalError",
    "message": "Horovod has been shut down",
    "traceback": "",
    "shown": "Traceback\nHorovodInternalError: Horovod has been shut down",
    "consequence": True,
}
VALUE_ERROR = {
    "type": "ValueError",
    "message": "boom",
    "traceback": "Traceback of all\nValueError: boom",
    "shown": "Traceback of the user\nValueError: boom",
    "consequence": False,
}


def record(*events, size=3, stall_timeout_s=60.0):
    """A record of `(seconds, rank, kind, data)`."""
    job = JobRecord(size, stall_timeout_s)
    for at, rank, kind, *data in events:
        job.record(RankEvent(rank, kind, data[0] if data else {}), at)
    return job


def verdict(job, at):
    failure = job.failure(at)
    return None if failure is None else (failure.rank, failure.reason)


def test_the_first_that_raised_is_to_blame_not_those_that_waited_for_it():
    later = (1.2, 1, "raised", {**VALUE_ERROR, "shown": "later"})
    job = record((1.0, 0, "raised", HOROVOD_DOWN), (1.1, 2, "raised", VALUE_ERROR), later)
    assert verdict(job, 2.0) == (2, "raised")
    assert str(job.error(job.failure(2.0))).startswith("Traceback of the user\nValueError: boom")


@pytest.mark.parametrize(
    ("events", "silent_until", "at", "expected"),
    [
        ([(1.0, 2, "returned"), *[(2.0, n, "raised", HOROVOD_DOWN) for n in (0, 1)]], 2.9, 6.0, (2, "left_early")),
        ([(1.0, 1, "returned"), *[(1.1, n, "joining") for n in (0, 2)]], 1.2, 2.0, (1, "left_early")),
        ([(1.0, 1, "stopped", {"signal": 19}), (31.0, 0, "raised", HOROVOD_DOWN)], 31.0, 35.0, (1, "stopped")),
        ([(1.0, 1, "lost", {"reason": "lost contact"})], 1.1, 2.0, (1, "lost")),
        ([(1.0, 0, "raised", HOROVOD_DOWN)], 3.9, 4.1, (0, "raised")),
    ],
    ids=["returned early", "returned without init", "stopped", "lost", "a consequence without its cause"],
)
def test_a_rank_is_blamed_once_no_other_cause_may_still_arrive(events, silent_until, at, expected):
    job = record(*events)
    assert verdict(job, silent_until) is None
    assert verdict(job, at) == expected


def test_a_death_is_to_blame_though_its_consequences_are_heard_first():
    job = record((1.0, 0, "raised", HOROVOD_DOWN), (2.5, 1, "ended", {"signal": 9, "exit_code": None}))
    assert verdict(job, 2.6) is None  # another cause may still arrive
    assert verdict(job, 3.0) == (1, "died")
    assert "was ended by SIGKILL" in job.failure(3.0).sentence


def test_a_stopped_rank_is_given_the_stall_timeout_less_the_time_to_end_the_others():
    job = record((1.0, 1, "stopped", {"signal": 19}))
    assert verdict(job, 55.9) is None
    assert verdict(job, 56.1) == (1, "stopped")
    assert "SIGSTOP" in job.failure(56.1).sentence
    job.record(RankEvent(1, "continued"), 56.2)
    assert verdict(job, 200) is None


def test_a_stopped_rank_is_to_blame_for_those_that_began_to_wait_for_it_just_before():
    # Rank 0 was in hvd.init() already, and rank 1 on its way out of it, when rank 1 was stopped.
    job = record((1.0, 0, "joining"), (1.0, 1, "joining"), (1.2, 1, "stopped", {"signal": 19}), size=2)
    assert verdict(job, 55.9) is None
    assert verdict(job, 56.1) == (1, "stopped")
    # One that was stopped a moment ago is not who the others have waited for all the time.
    job = record((1.0, 0, "joining"), (55.0, 1, "stopped", {"signal": 19}), size=2)
    assert verdict(job, 56.1) == (1, "stalled")


def test_a_rank_that_never_comes_to_init_is_to_blame():
    job = record((1.0, 0, "joining"), (1.0, 2, "joining"))
    assert verdict(job, 55.9) is None
    assert verdict(job, 56.1) == (1, "stalled")
    assert "never reached hvd.init()" in job.failure(62).sentence
    assert "stall_timeout_s" in job.failure(62).sentence


def test_ranks_that_reach_init_and_cannot_meet_are_told_about_the_network():
    job = record((1.0, 0, "joining"), (1.0, 1, "joining"), (1.0, 2, "joining"))
    assert verdict(job, 62)[1] == "stalled"
    assert "network" in job.failure(62).sentence


def joined(size=3):
    return [(0.5, rank, kind) for rank in range(size) for kind in ("joining", "joined")]


def progress(at, rank, entered, left):
    return (at, rank, "progress", {"entered": entered, "left": left})


def waiting(start, end, rank, entered, left):
    """What a rank reports, once a second, while it waits in a collective."""
    return [progress(start + second, rank, entered, left) for second in range(int(end - start) + 1)]


@pytest.mark.parametrize(
    "events",
    [
        [(0, 0, "started"), *[(1 + rank, rank, "returned") for rank in range(3)]],
        joined(),
        [*joined(), *[progress(1.0, rank, 9, 9) for rank in range(3)]],
        [(1.0, 1, "returned"), (1.1, 1, "lost", {"reason": "gone"})],
    ],
    ids=["all have returned", "all have joined", "all compute", "a connection ends after its rank has returned"],
)
def test_nothing_wrong_is_no_failure_however_long_it_lasts(events):
    assert verdict(record(*events), 1e6) is None


def test_the_rank_that_has_entered_fewer_collectives_is_waited_for():
    late, early = progress(1.5, 1, 4, 4), [*joined(), *waiting(1.0, 55.0, 0, 5, 4), *waiting(1.0, 55.0, 2, 5, 4)]
    assert verdict(record(*early, late), 55.9) is None
    job = record(*early, late, progress(56.1, 0, 5, 4))
    assert verdict(job, 56.1) == (1, "stalled")
    assert "did not take part in a collective" in job.failure(61.1).sentence
    job.record(RankEvent(1, "progress", {"entered": 5, "left": 5}), 61.2)
    job.record(RankEvent(0, "progress", {"entered": 5, "left": 5}), 61.2)
    job.record(RankEvent(2, "progress", {"entered": 5, "left": 5}), 61.2)
    assert verdict(job, 500) is None


def test_a_message_of_the_rank_that_the_others_wait_for_is_progress_and_one_of_a_rank_that_waits_is_none():
    early = [*joined(), progress(1.0, 1, 4, 4), progress(1.0, 2, 5, 5), *waiting(1.0, 40.0, 0, 5, 4)]
    said = [*early, (40.0, 1, "message", {"text": "at work"})]
    assert verdict(record(*said, *waiting(41.0, 90.0, 0, 5, 4)), 90) is None
    assert verdict(record(*said, *waiting(41.0, 96.0, 0, 5, 4)), 96) == (1, "stalled")
    job = record(*said, *waiting(41.0, 90.0, 0, 5, 4), (90.0, 0, "message", {"text": "waits"}), progress(96, 0, 5, 4))
    assert verdict(job, 96) == (1, "stalled")


def test_a_stale_sample_is_no_evidence_that_a_rank_waits():
    # All were seen in a collective; then each left it and held its interpreter, which reports nothing, for long.
    job = record(*joined(), *[progress(1.0, rank, 5, 4) for rank in range(3)])
    assert verdict(job, 500) is None
    job.record(RankEvent(1, "progress", {"entered": 5, "left": 5}), 500)
    assert verdict(job, 1000) is None
    # One that still stands where it stood before it fell silent has waited all the time.
    job.record(RankEvent(2, "progress", {"entered": 5, "left": 4}), 1000)
    assert verdict(job, 1000) == (2, "stalled")


def test_ranks_that_all_wait_may_have_called_different_collectives():
    job = record(*joined(), *[event for rank in range(3) for event in waiting(1.0, 62.0, rank, 9, 8)])
    assert verdict(job, 62) == (0, "stalled")
    assert "ranks may have called different ones" in job.failure(62).sentence


OWN_ERROR = {
    "type": "OSError",
    "message": "reading s3://photos/7.jpg: Connection closed by peer",
    "traceback": "",
    "shown": "Traceback\nOSError: reading s3://photos/7.jpg: Connection closed by peer",
    "consequence": True,
}


def test_a_rank_that_the_others_waited_for_is_blamed_for_its_own_error_though_that_reads_like_a_broken_connection():
    waiting = (*joined(2), progress(1.0, 0, 5, 4), progress(1.0, 1, 4, 4))
    job = record(*waiting, (2.0, 0, "raised", HOROVOD_DOWN), (2.1, 1, "raised", OWN_ERROR), size=2)
    assert verdict(job, 6.0) == (1, "raised")
    assert str(job.error(job.failure(6.0))).startswith("Traceback\nOSError: reading s3://photos/7.jpg")
    # Before it came to hvd.init(), where the other waits, and in a world of one.
    job = record((1.0, 0, "joining"), (2.0, 0, "raised", HOROVOD_DOWN), (2.1, 1, "raised", OWN_ERROR), size=2)
    assert verdict(job, 6.0) == (1, "raised")
    assert verdict(record((2.1, 0, "raised", OWN_ERROR), size=1), 6.0) == (0, "raised")


def test_a_rank_that_has_not_failed_is_to_blame_for_the_connections_of_those_that_waited_and_no_time_is_claimed():
    waiting = (*joined(2), progress(1.0, 0, 5, 4), progress(1.0, 1, 4, 4))
    job = record(*waiting, (2.0, 0, "raised", HOROVOD_DOWN), size=2)
    assert verdict(job, 6.0) == (1, "stalled")
    assert "did not take part in a collective" in job.failure(6.0).sentence
    assert "within" not in job.failure(6.0).sentence
    job = record((1.0, 0, "joining"), (2.0, 0, "raised", HOROVOD_DOWN), size=2)
    assert verdict(job, 6.0) == (1, "stalled")
    assert "within" not in job.failure(6.0).sentence


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ({"signal": 11}, "was ended by SIGSEGV"),
        ({"signal": 9, "out_of_memory": True, "peak_bytes": 3 << 30}, "out of memory; its memory peaked at 3072 MiB"),
    ],
)
def test_an_end_is_described_by_name(end, words):
    assert words in describe_end(end)


def test_memory_that_a_limit_refuses_is_the_users_exception_and_named():
    job = record((1.0, 0, "raised", {**VALUE_ERROR, "type": "MemoryError", "message": ""}))
    assert job.failure(2.0).sentence.startswith("raised MemoryError (out of memory: use smaller batches")


@pytest.mark.parametrize(
    ("type_name", "message", "expected"),
    [
        ("HorovodInternalError", "anything", True),
        ("UnknownError", "Horovod has been shut down. This was caused by an exception on one of the ranks", True),
        ("RuntimeError", "[/tmp/x/third_party/gloo/gloo/transport/tcp/pair.cc:599] Connection closed by peer", True),
        ("ValueError", "boom", False),
        ("ConnectionError", "cannot reach the tracking server", False),
    ],
)
def test_consequences_are_told_from_causes(type_name, message, expected):
    assert is_consequence(type_name, message) is expected


def test_the_last_hundred_lines_are_kept():
    job = record(*[(0.0, 0, "line", {"stream": "stdout", "text": str(number)}) for number in range(250)])
    job.record(RankEvent(0, "raised", VALUE_ERROR), 1.0)
    error = job.error(job.failure(2.0))
    assert error.log == [str(number) for number in range(150, 250)]


def test_an_error_about_the_machine_is_one_sentence_and_one_about_code_has_its_traceback():
    full = {**VALUE_ERROR, "type": "lakelens.errors.CheckpointError", "message": "no space"}
    wrong = {**VALUE_ERROR, "type": "lakelens.errors.InvalidArgumentError", "message": "global_batch_size=0"}
    for raised, has_traceback in ((full, False), (wrong, True), (VALUE_ERROR, True)):
        job = record((1.0, 0, "line", {"stream": "stdout", "text": "epoch 1"}), (1.0, 0, "raised", raised))
        error = job.error(job.failure(2.0))
        assert ("Traceback" in str(error), "epoch 1" in str(error)) == (has_traceback, has_traceback)
        assert f"raised {raised['type']}: {raised['message']}" in error.summary
        assert (error.traceback, error.kind) == (raised["traceback"], raised["type"])


def test_an_error_is_told_once_and_without_the_lines_of_a_start():
    start = "I0000 00:00:1795872873.289292   16129 port.cc:153] oneDNN custom operations are on."
    for shows_lines in (False, True):
        job = JobRecord(3, 60.0, shows_lines=shows_lines)
        for text in (start, "epoch 1"):
            job.record(RankEvent(0, "line", {"stream": "stderr", "text": text}), 1.0)
        job.record(RankEvent(0, "raised", VALUE_ERROR), 1.0)
        error = job.error(job.failure(2.0))
        assert str(error).startswith("Traceback of the user\nValueError: boom\n\nrank 0 of 3 on ")
        assert (str(error).count("boom"), str(error).count("epoch 1")) == (1, 0 if shows_lines else 1)
        assert start not in str(error)
        assert error.log == [start, "epoch 1"]
