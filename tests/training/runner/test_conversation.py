"""Ranks that ask the driver and are told by it, as processes on the driver and as a barrier stage alike."""

from __future__ import annotations

import threading
import time

import pytest

from lakelens.training.runner.placement.conversation import Controls

pytestmark = pytest.mark.sessions("driver", "classic")


def test_ranks_ask_in_turn_and_are_told_while_they_run_in_each_start(runner):
    def main():
        from lakelens.training.rank.process_context import ask, current, told

        answers = [ask({"number": number, "attempt": current().attempt}) for number in range(3)]
        while not told().get("pause"):
            time.sleep(0.01)
        if current().attempt == 0 and current().rank == 0:
            raise ValueError("again")
        return answers, told(), current().rank

    asked, threads, controls = [], set(), Controls()

    def on_question(rank, body):
        threads.add(threading.get_ident())
        asked.append((body["attempt"], rank, body["number"]))
        if len(asked) == 6:
            threading.Thread(target=controls.tell, args=({"pause": True},)).start()
        return {"to": [rank, body["number"]]}

    controls.tell({"until": 40})
    value = runner(max_restarts=1).run_with(main, {}, on_question=on_question, controls=controls)
    assert value == ([{"to": [0, number]} for number in range(3)], {"until": 40, "pause": True}, 0)
    for attempt in (0, 1):
        for rank in (0, 1):
            assert [number for *who, number in asked if who == [attempt, rank]] == [0, 1, 2]
    assert threads == {threading.get_ident()}
