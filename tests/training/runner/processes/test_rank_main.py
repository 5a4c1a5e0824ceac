"""Training functions that do what nobody should: each ends with its value or with an error that says what it did."""

from __future__ import annotations

import linecache
import os
import resource
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from leftovers import Watch, leaves_nothing

from lakelens.errors import LaunchError, RankFailedError
from lakelens.training.rank.frames import Kind, pack
from lakelens.training.runner.runner import HorovodRunner

pytestmark = pytest.mark.system


@pytest.fixture
def watch() -> Iterator[Watch]:
    with leaves_nothing() as watch:
        yield watch


def run(watch: Watch, main, **options):
    return HorovodRunner(np=-1, env=watch.env, **options).run(main)


def test_a_traceback_of_any_length_in_any_script_comes_back(watch):
    def main():
        raise ValueError("\N{GRINNING FACE}" * 300_000)

    with pytest.raises(RankFailedError) as caught:
        run(watch, main)
    assert caught.value.reason == "raised"
    assert "\N{GRINNING FACE}" * 1000 in caught.value.traceback


CELL = """\
def main():
    print("training")
    return deeper({"rate": 0.1})

def deeper(options):
    from lakelens.options import whole_number

    return whole_number("np", options["np"])
"""


def test_an_error_is_told_once_with_the_lines_of_a_notebooks_cell(watch, capfd):
    name = "<ipython-input-3-cell>"
    linecache.cache[name] = (len(CELL), None, CELL.splitlines(keepends=True), name)
    cell: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(CELL, name, "exec"), cell)  # noqa: S102 - as a notebook does
    with pytest.raises(RankFailedError) as caught:
        run(watch, cell["main"], driver_log_verbosity="log_callback_only")
    text, error = str(caught.value), caught.value
    assert (error.kind, error.summary.count("KeyError: 'np'")) == ("KeyError", 1)
    frames, sentence, *tail = text.split("\n\n")
    assert [line for line in frames.splitlines() if "^" not in line] == [
        "Traceback (most recent call last):",
        f'  File "{name}", line 3, in main',
        '    return deeper({"rate": 0.1})',
        f'  File "{name}", line 8, in deeper',
        '    return whole_number("np", options["np"])',
        "KeyError: 'np'",
    ]
    assert sentence.startswith("rank 0 of 1 on ")
    assert [part.splitlines()[1:] for part in tail] == [["  training"]]
    said = capfd.readouterr()
    assert ("Traceback" in said.out + said.err, "training" in said.out) == (False, False)


def test_lakelens_frames_are_not_the_users_and_the_whole_traceback_stays(watch):
    def main():
        from lakelens.options import whole_number

        whole_number("np", "two")

    with pytest.raises(RankFailedError, match=r"(?s)in main\n    whole_number.*InvalidArgumentError: ") as caught:
        run(watch, main)
    assert ("options.py" in str(caught.value), "options.py" in caught.value.traceback) == (False, True)
    assert len(traceback.extract_tb(caught.value.__traceback__)) <= 3  # this test, `run` above, and HorovodRunner.run


def failing() -> list[tuple[Callable[[], Any], type[LaunchError], str]]:
    """Functions that end a rank; each with its error."""

    def returns_what_cannot_be_pickled():
        import threading

        return {"lock": threading.Lock()}

    def returns_what_cannot_be_read():
        class Value:
            def __reduce__(self):
                return open, ("/only/where/it/was/made",)

        return Value()

    def raises_what_cannot_be_written():
        class Mute(Exception):
            def __str__(self):
                raise RuntimeError("no words")

        raise Mute

    def raises_system_exit():
        sys.exit(3)

    def leaves_with_a_code():
        os._exit(7)

    def leaves_with_zero():
        os._exit(0)

    def closes_every_descriptor():
        os.closerange(0, 256)

    def kills_its_keeper():
        import time

        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)

    return [
        (returns_what_cannot_be_pickled, RankFailedError, "returned dict, which cannot be pickled"),
        (returns_what_cannot_be_read, LaunchError, "rank 0's value cannot be read .*only/where/it/was/made"),
        (raises_what_cannot_be_written, RankFailedError, "Mute"),
        (raises_system_exit, RankFailedError, "SystemExit: 3"),
        (leaves_with_a_code, RankFailedError, "ended with exit code 7 without an exception"),
        (leaves_with_zero, RankFailedError, "exit code 0 before the training function had returned"),
        (closes_every_descriptor, RankFailedError, "rank 0 of 1 on .* ended with exit code 1"),
        (kills_its_keeper, RankFailedError, "SIGKILL"),
    ]


@pytest.mark.parametrize(("main", "error", "words"), failing(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_function_that_fails_in_any_way_ends_with_an_error_that_says_how(watch, main, error, words):
    with pytest.raises(error, match=words) as caught:
        run(watch, main)
    if "code 7" in words:
        assert caught.value.exit_code == 7


def test_sys_exit_zero_is_a_return(watch):
    assert run(watch, lambda: sys.exit(0)) is None


def test_output_that_is_no_text_is_shown_as_far_as_it_is_and_one_without_newlines_whole_in_pieces(watch, capfd):
    def main():
        import os
        import sys

        os.write(1, b"before \xff\xfe\x00 after\n")
        sys.stdout.write("".join(f"{number:07d}," for number in range(1_250_000)))

    run(watch, main, driver_log_verbosity="all")
    first, *lines = capfd.readouterr().out.splitlines()
    assert first == "[0]<stdout> before \ufffd\ufffd\0 after"
    text = "".join(line.removeprefix("[0]<stdout> ") for line in lines)
    assert text == "".join(f"{number:07d}," for number in range(1_250_000))
    assert max(map(len, lines)) < 10_000


def test_a_driver_whose_terminal_knows_ascii_only_shows_what_it_can():
    code = (
        "from lakelens.training.runner.runner import HorovodRunner\n"
        "def main():\n"
        "    from lakelens.training.rank.process_context import log_to_driver\n"
        "    log_to_driver('caf\\u00e9')\n"
        "    return 'done'\n"
        "print(HorovodRunner(np=-1, env={'PYTHONIOENCODING': 'utf-8'}).run(main))\n"
    )
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    found = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-2000:]
    assert found.stdout == "caf?\ndone\n"


def test_a_rank_may_close_its_output_leave_its_folder_and_empty_its_environment(watch, tmp_path):
    def main(folder):
        import os
        from pathlib import Path

        os.chdir(folder)
        Path(folder).rmdir()
        os.umask(0o777)
        os.environ.clear()
        os.close(1)
        os.close(2)
        return "done"

    (tmp_path / "gone").mkdir()
    assert HorovodRunner(np=-1, env=watch.env).run(main, folder=str(tmp_path / "gone")) == "done"


@pytest.mark.parametrize(
    ("rubbish", "rule"),
    [
        (b"\xff" * 64, "a frame announces 4294967295 bytes"),
        (pack(99), "a rank cannot send a frame of kind 99"),
        (pack(Kind.PROGRESS, {"entered": 1}), "an event of kind 'progress' has left=None; it must be int"),
    ],
    ids=["rubbish", "kind", "fields"],
)
def test_a_rank_that_writes_into_its_line_to_the_launcher_is_lost_with_the_rule(watch, rubbish, rule):
    def main(data):
        import time

        from lakelens.training.rank.process_context import current

        current().line.socket.sendall(data)
        time.sleep(600)

    with pytest.raises(RankFailedError) as caught:
        HorovodRunner(np=-1, env=watch.env).run(main, data=rubbish)
    assert (caught.value.rank, caught.value.reason) == (0, "lost")
    assert f"wrote into its line to the launcher: {rule}" in str(caught.value)


def test_messages_of_many_threads_arrive_whole(watch, capfd):
    def main():
        import threading

        from lakelens.training.rank.process_context import log_to_driver

        def talk(name):
            for number in range(200):
                log_to_driver(f"{name}-{number}-" + "x" * 3000)

        threads = [threading.Thread(target=talk, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    run(watch, main)
    lines = capfd.readouterr().out.splitlines()
    assert sorted(lines) == sorted(f"{name}-{number}-" + "x" * 3000 for name in range(8) for number in range(200))


def test_a_module_whose_import_fails_in_any_way_does_so_in_the_training_function(watch, tmp_path, monkeypatch):
    def main():
        try:
            import tensorflow
        except TypeError as error:
            return f"trained without: {error}"
        return tensorflow.__name__

    (tmp_path / "tensorflow.py").write_text("raise TypeError('a protobuf that is too new')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert run(watch, main) == "trained without: a protobuf that is too new"


def test_a_start_for_which_the_folder_for_temporary_files_is_missing_or_full_leaves_nothing(watch, monkeypatch):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(LaunchError, match=r"takes no file of .*TMPDIR"):
            HorovodRunner(np=-2, env=watch.env).run(len, obj=bytes(8 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    with pytest.raises(LaunchError, match=r"/proc, takes no file of .*TMPDIR"):
        run(watch, len)


@pytest.mark.parametrize("leaves", [False, True], ids=["returns", "exits"])
def test_a_value_for_which_the_disk_has_no_room_is_an_error_that_says_so(watch, leaves):
    def main(leaves):
        import resource
        import signal
        import sys

        limit = 0 if leaves else 1 << 20
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        if leaves:
            sys.exit(0)
        return bytes(8 << 20)

    with pytest.raises(RankFailedError, match=r"could not be written .*File too large.*TMPDIR") as caught:
        HorovodRunner(np=-1, env=watch.env).run(main, leaves=leaves)
    assert caught.value.reason == "raised"


def test_an_interruption_at_any_moment_of_the_start_leaves_nothing(watch, monkeypatch):
    def main():
        import time

        time.sleep(100)

    def interrupt(*_):
        raise KeyboardInterrupt

    def again(found):
        if found.exc_type is KeyboardInterrupt:  # raised where Python reports it and goes on, as in __del__
            signal.setitimer(signal.ITIMER_REAL, 0.001)

    monkeypatch.setattr(sys, "unraisablehook", again)
    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        for moment in range(10):
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the clock starts with the call
                signal.setitimer(signal.ITIMER_REAL, 0.001 * 2.0**moment)
                run(watch, main)
    finally:
        signal.signal(signal.SIGALRM, previous)


def test_horovods_keras_modules_are_lakelens_hvd() -> None:
    code = """
import sys, types
for name in ("horovod", "horovod.tensorflow"):  # their import takes TensorFlow's seconds
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = []
from lakelens.training.runner.processes.rank_main import use_hvd_for_keras
use_hvd_for_keras()
import horovod.keras as one
import horovod.tensorflow.keras as other
import lakelens.hvd
assert one is other is lakelens.hvd, (one, other)
assert one.__spec__.name == "lakelens.training.distributed", one.__spec__
from horovod.keras import size
assert size() == 1
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
