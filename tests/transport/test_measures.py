"""Measurements that lanes take of their own work."""

from __future__ import annotations

from kafka_ratchet.transport.measures import Histogram


def test_a_duration_is_in_the_first_bucket_that_it_fits() -> None:
    histogram = Histogram((0.1, 1.0))
    for seconds in (0.1, 0.2, 1.0, 7.0):
        histogram.observe(seconds)
    assert histogram.counts == [1, 2, 1]
    assert histogram.seconds == 0.1 + 0.2 + 1.0 + 7.0
