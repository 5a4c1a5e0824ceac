"""Ranks that ask the driver and are told by it, as processes on the driver and as a barrier stage alike."""

from __future__ import annotations

import threading
import time

import pytest

from lakelens.training.runner.placement.conversation import Controls

pytestmark = pytest.mark.sessions("driver", "classic")


def test_ranks_ask_in_turn_and_are_told_while_they_run(runner):
    def main():

        from lakelens.training.rank.process_context import ask, current, told

        answers = [ask({"number": number}) for number in range(3)]
        while not told().get("pause"):
            time.sleep(0.01)
        return answers, told(), current().rank

    asked, threads, controls = [], set(), Controls()

    def on_question(rank, body):
        threads.add(threading.get_ident())
        asked.append((rank, body["number"]))
        if len(asked) == 6:
            threading.Thread(target=controls.tell, args=({"pause": True},)).start()
        return {"to": [rank, body["number"]]}

    controls.tell({"until": 40})
    value = runner().run_with(main, {}, on_question=on_question, controls=controls)
    assert value == ([{"to": [0, number]} for number in range(3)], {"until": 40, "pause": True}, 0)
    for rank in (0, 1):
        assert [number for who, number in asked if who == rank] == [0, 1, 2]
    assert threads == {threading.get_ident()}


def test_what_the_driver_raises_at_a_question_ends_the_job_and_is_raised_as_it_is(runner):
    def main():

        from lakelens.training.rank.process_context import ask, current

        if current().rank == 1:
            ask({})
        time.sleep(600)

    problem = KeyError("accuracy")

    def on_question(rank, body):
        raise problem

    with pytest.raises(KeyError) as caught:
        runner(max_restarts=3).run_with(main, {}, on_question=on_question)
    assert caught.value is problem


def test_a_job_that_is_started_again_is_told_again_and_asks_again(runner):
    def main():
        from lakelens.training.rank.process_context import ask, current, told

        if current().rank == 0:
            ask({"attempt": current().attempt})
            if current().attempt == 0:
                raise ValueError("again")
            return told()
        return None

    attempts, controls = [], Controls()

    def on_question(rank, body):
        attempts.append(body["attempt"])
        controls.tell({f"told {body['attempt']}": True})
        return {}

    assert runner(max_restarts=1).run_with(main, {}, on_question=on_question, controls=controls) == {
        "told 0": True,
        "told 1": True,
    }
    assert attempts == [0, 1]
