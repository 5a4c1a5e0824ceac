"""What a rank reports of its collectives, without other ranks."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.tensorflow


class Link:
    """Keeps what is sent."""

    def __init__(self):
        self.sent = []

    def send(self, kind, body):
        self.sent.append(body)


@pytest.fixture
def link():
    return Link()


@pytest.fixture
def counter(link, monkeypatch):
    from lakelens.training.distributed import collective_counter as stall
    from lakelens.training.rank import collective_reports

    monkeypatch.setattr(collective_reports, "SAMPLE_S", 3600.0)  # what is reported is the last report
    counter = stall.CollectiveCounter(link)
    yield counter
    counter.close()


def test_a_rank_that_leaves_its_world_reports_the_collectives_since_the_last_sample(counter, link):
    import tensorflow as tf

    counter.around(lambda: tf.constant(1), [])
    counter.close()
    assert link.sent == [{"entered": 1, "left": 1}]
    counter.close()
    assert len(link.sent) == 1


def test_a_collective_that_raises_is_left_too(counter, link):
    def refused():
        raise ValueError("shapes differ")

    with pytest.raises(ValueError, match="shapes differ"):
        counter.around(refused, [])
    counter.close()
    assert link.sent == [{"entered": 1, "left": 1}]


def test_a_rank_that_waits_says_so_again_with_every_sample(counter, link):
    def collective():
        counter._reports._sample()
        counter._reports._sample()

    counter.around(collective, [])
    counter._reports._sample()
    counter._reports._sample()
    assert link.sent == [{"entered": 1, "left": 0}, {"entered": 1, "left": 0}, {"entered": 1, "left": 1}]
