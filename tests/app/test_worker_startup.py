"""Kafka goes away while a worker is only starting: the worker waits for it, as for one that is not there yet."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from app import _topics
from errors import BrokerUnavailable
from faults._kafka import EmbeddedKafka
from faults._proxy import Line
from faults._site import Site


def test_kafka_goes_away_while_the_topics_are_prepared(tmp_path: Path) -> None:
    with EmbeddedKafka(tmp_path / "kafka", nodes=1, workers=1) as kafka:
        site = Site(kafka, tmp_path / "site", workers=1, seed=1)
        try:
            worker = site.workers[0]
            worker.start()
            # The first of six that it makes, each with several requests.
            site.wait_for(lambda: worker.said("topic created"), "the first topic")
            kafka.line(0, Line.CUT)
            site.wait_for(lambda: worker.said("Kafka went away"), "the word that Kafka went away")
            kafka.line(0, Line.OPEN)
            site.wait_for_progress(site.positions(), "the first commits")
            worker.process()
        finally:
            site.close()


def test_no_request_of_the_preparation_waits_without_a_name_for_what_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A bare TimeoutError of the client's future once ended the worker.
    monkeypatch.setattr(_topics, "ADMIN_TIMEOUT_S", 1.0)
    with EmbeddedKafka(tmp_path / "kafka", nodes=1, workers=1) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_of(0), "log_level": 0})
        _topics.create(admin, "there", 1, 1, {})
        kafka.line(0, Line.CUT)
        for request in (
            lambda: _topics.partition_counts(admin, ["there"]),
            lambda: _topics.create(admin, "missing", 1, 1, {}),
            lambda: _topics.config_of(admin, "there"),
        ):
            with pytest.raises(BrokerUnavailable):
                request()
