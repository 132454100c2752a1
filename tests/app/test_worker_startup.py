"""Kafka goes away while a worker is only starting: the worker waits for it, as for one that is not there yet."""

from __future__ import annotations

from pathlib import Path

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
