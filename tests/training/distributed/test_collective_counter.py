"""What a rank reports of its collectives, without other ranks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def counted(monkeypatch):
    """A counter, and what it sends."""
    from lakelens.training.distributed import collective_counter as stall
    from lakelens.training.rank import collective_reports

    monkeypatch.setattr(collective_reports, "SAMPLE_S", 3600.0)  # what is reported is the last report
    sent = []
    counter = stall.CollectiveCounter(SimpleNamespace(send=lambda kind, body: sent.append(body)))
    yield counter, sent
    counter.close()


def test_a_rank_that_leaves_its_world_reports_the_collectives_since_the_last_sample_and_one_that_raised(counted):
    import tensorflow as tf

    counter, sent = counted

    def refused():
        raise ValueError("shapes differ")

    counter.around(lambda: tf.constant(1), [])
    with pytest.raises(ValueError, match="shapes differ"):
        counter.around(refused, [])
    counter.close()
    counter.close()
    assert sent == [{"entered": 2, "left": 2}]


def test_a_rank_that_waits_says_so_again_with_every_sample(counted):
    counter, sent = counted

    def collective():
        counter._reports._sample()
        counter._reports._sample()

    counter.around(collective, [])
    counter._reports._sample()
    counter._reports._sample()
    assert sent == [{"entered": 1, "left": 0}, {"entered": 1, "left": 0}, {"entered": 1, "left": 1}]
