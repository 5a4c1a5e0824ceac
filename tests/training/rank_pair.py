"""Two ranks that stay: launched once, they run one function after another for all tests that only need two ranks."""

from __future__ import annotations

import inspect
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
from leftovers import leaves_nothing

from lakelens.training.runner.runner import HorovodRunner

RANKS = 2


def serve_functions() -> None:
    """Runs on each rank, until the driver has no more functions; what a function raises ends the pair."""
    import time

    from lakelens.training.rank.process_context import ask, current

    done = 0
    while "end" not in (answer := ask({"done": done})):
        if "call" not in answer:
            time.sleep(0.02)
            continue
        function, arguments = cloudpickle.loads(Path(answer["call"]).read_bytes())
        value = cloudpickle.dumps(function(*arguments))
        Path(f"{answer['call']}-{current().rank}").write_bytes(value)
        done += 1


class RankPair:
    """Starts its ranks with the first function, and again after one that failed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Calls a function on both ranks and returns the value of each; what one raises is raised with its traceback.

        The function is sent by value, and what it reads of its module with it.
        """
        if self._thread is None:
            self._start()
        place = Path(self._folder.name, str(len(self._calls)))
        module = inspect.getmodule(function)
        cloudpickle.register_pickle_by_value(module)
        try:
            place.write_bytes(cloudpickle.dumps((function, arguments)))
        finally:
            cloudpickle.unregister_pickle_by_value(module)
        with self._changed:
            self._calls.append(str(place))
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._ended or min(self._done) == len(self._calls))
        if self._ended:
            self.end()
        return [cloudpickle.loads(Path(f"{place}-{rank}").read_bytes()) for rank in range(RANKS)]

    def end(self) -> None:
        """Ends the ranks; raises what ended them before, and what they have left."""
        if self._thread is None:
            return
        with self._changed:
            self._wanted = False
            self._changed.notify_all()
        self._thread.join()
        self._thread = None
        self._folder.cleanup()
        if self._error is not None:
            raise self._error

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._calls: list[str] = []
        self._done = [0] * RANKS
        self._wanted, self._ended = True, False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def _live(self) -> None:
        try:
            # Tests of this process open files and ports of their own meanwhile.
            with leaves_nothing(same_process_tree=False) as watch:
                env = {**watch.env, "TF_CPP_MIN_LOG_LEVEL": "2"}
                runner = HorovodRunner(np=-RANKS, env=env, stall_timeout_s=300)
                runner.run_with(serve_functions, {}, on_question=self._answer)
        except BaseException as error:  # noqa: BLE001 - raised in the thread of the tests
            self._error = error
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _answer(self, rank: int, body: dict[str, Any]) -> dict[str, Any]:
        """Gives a rank its next function; once both have done all there are, waits for the next."""
        if "done" not in body:
            return {}  # asked by a function
        with self._changed:
            self._done[rank] = body["done"]
            self._changed.notify_all()
            if min(self._done) == len(self._calls):
                self._changed.wait_for(lambda: not self._wanted or min(self._done) < len(self._calls))
            if self._done[rank] < len(self._calls):
                return {"call": self._calls[self._done[rank]]}
            return {} if self._wanted else {"end": True}
