"""The figures of partitions are written by hand, line by line: as Prometheus's own client would write them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from kafka_ratchet.app.status.metrics import NO_MORE, PartitionsText, _families, _samples
from tests.app.worker.known_worker import KnownWorker, partition, table


class ByObjects(Collector):
    """The plain way: an object for each sample."""

    def __init__(self, worker: KnownWorker) -> None:
        self._worker = worker

    def collect(self) -> Iterator[Metric]:
        families = _families()
        for each in self._worker.tables():
            families["deduplicate"].add_metric([each.stream, each.origin], int(each.deduplicate))
            for row in each.partitions:
                for name, label, value in _samples(row):
                    more = [] if label == NO_MORE else [label]
                    families[name].add_metric([each.stream, str(row.partition), *more], value)
        yield from families.values()


def by_objects(worker: KnownWorker) -> str:
    registry = CollectorRegistry()
    registry.register(ByObjects(worker))
    return generate_latest(registry).decode()


@pytest.mark.parametrize("reason", ["", "CorruptBatch", 'a "quoted\\one\nwith a line'])
def test_the_text_is_that_of_prometheus_own_client(reason: str) -> None:
    rows = [
        partition(0),
        partition(3, state="halted", halted=reason, fresh=123_456_789_012, lag_s=12.5, fetched_at=1_795_456_682.25),
        partition(11, input_position=None, input_end=None, missing=7),
    ]
    worker = KnownWorker([table(*rows)])
    text = PartitionsText(worker)
    assert text.text() == by_objects(worker)
    assert text.text() == by_objects(worker)
    worker.tables_now[:] = [table(rows[2], partition(12))]  # two have gone elsewhere, and one has come
    assert text.text() == by_objects(worker)
    worker.tables_now[:] = []
    assert text.text() == by_objects(worker)
