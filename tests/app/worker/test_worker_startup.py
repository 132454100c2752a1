"""Kafka goes away while a worker is only starting: the worker waits for it, as for one that is not there yet."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from faults.environment import SESSION_TIMEOUT_MS, Environment, Worker
from faults.events import IDENTITIES
from faults.kafka import EmbeddedKafka
from faults.proxy import Line
from kafka_ratchet.app.local.embedded_kafka import EmbeddedBroker
from kafka_ratchet.app.worker import topics as kafka_topics
from kafka_ratchet.app.worker.faust_app import REQUEST_SLACK_S
from kafka_ratchet.errors import BrokerUnavailable, TopicError
from kafka_ratchet.producers import create_topic, no_broker_is_let_in
from kafka_ratchet.topic_log.clients import partition_counts


@pytest.mark.matrix
def test_kafka_goes_away_while_the_topics_are_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_KAFKA_TIMEOUT_S", "180")  # a question on the line that is cut takes 30 s to fail
    with EmbeddedKafka(tmp_path / "kafka", nodes=1, workers=1) as kafka:
        environment = Environment(kafka, tmp_path / "environment", workers=1, seed=1)
        try:
            worker = environment.workers[0]
            kafka.line(0, Line.DELAYED)
            worker.start()
            # The first of six that it makes, each with several requests: the others take seconds on this line.
            environment.wait_for(lambda: worker.has_logged("topic created"), "the first topic")
            kafka.line(0, Line.CUT)
            environment.wait_for(lambda: worker.has_logged("Kafka went away"), "the word that Kafka went away")
            kafka.line(0, Line.OPEN)
            environment.wait_for_progress(environment.positions(), "the first commits")
            worker.process()
        finally:
            environment.close()


@contextmanager
def _slow_from_the_topics_on(folder: Path) -> Iterator[tuple[EmbeddedKafka, Environment, Worker]]:
    """A worker whose line is delayed as soon as it has made its topics: three for each stream, policies, and owners."""
    with EmbeddedKafka(folder / "kafka", nodes=1, workers=1) as kafka:
        environment = Environment(kafka, folder / "environment", workers=1, seed=1)
        try:
            worker = environment.workers[0]
            worker.start()
            environment.wait_for(
                lambda: worker.output().count("topic created") == 3 * len(IDENTITIES) + 2, "the topics"
            )
            kafka.line(0, Line.DELAYED)
            yield kafka, environment, worker
        finally:
            environment.close()


@pytest.mark.matrix
def test_kafka_goes_away_right_after_the_first_assignment(tmp_path: Path) -> None:
    with _slow_from_the_topics_on(tmp_path) as (kafka, environment, worker):
        environment.wait_for(lambda: worker.has_logged("partitions assigned"), "the assignment")
        kafka.line(0, Line.CUT)
        # By then Faust's recovery has waited too long for an answer, which once ended it. The start waited for it all
        # the same, and nobody looked whether the worker was to stop.
        time.sleep(SESSION_TIMEOUT_MS / 1000 + REQUEST_SLACK_S + 2)
        kafka.line(0, Line.OPEN)
        environment.wait_for_progress(environment.positions(), "the first commits")
        environment.wait_for(lambda: worker.has_logged("worker runs"), "the end of the start")
        worker.stop()


@pytest.mark.matrix
def test_a_worker_that_is_only_starting_stops_when_it_is_told_to(tmp_path: Path) -> None:
    with _slow_from_the_topics_on(tmp_path) as (kafka, environment, worker):
        environment.wait_for(
            lambda: worker.has_logged("status_address"), "the address, which stands before the group is joined"
        )
        kafka.line(0, Line.CUT)
        worker.stop()
        assert worker.has_logged("worker stops")


def test_no_request_of_the_preparation_waits_without_a_name_for_what_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EmbeddedKafka(tmp_path / "kafka", nodes=1, workers=1) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_of(0), "log_level": 0})
        kafka_topics.create(admin, "there", 1, 1, {})
        # A bare TimeoutError of the client's future once ended the worker.
        monkeypatch.setattr(kafka_topics, "ADMIN_TIMEOUT_S", 1.0)
        monkeypatch.setattr("kafka_ratchet.topic_log.clients.ADMIN_TIMEOUT_S", 1.0)
        kafka.line(0, Line.CUT)
        requests: tuple[Callable[[], object], ...] = (
            lambda: partition_counts(admin, ["there"]),
            lambda: kafka_topics.create(admin, "missing", 1, 1, {}),
            lambda: kafka_topics.config_of(admin, "there"),
        )
        for request in requests:
            with pytest.raises(BrokerUnavailable):
                request()


@pytest.mark.matrix
def test_topics_are_made_as_soon_as_kafka_lets_a_broker_in_again(tmp_path: Path) -> None:
    overdue = {"broker.session.timeout.ms": "1000", "broker.heartbeat.interval.ms": "4000"}  # for 3 s in every 4
    with EmbeddedBroker(tmp_path / "kafka", options=overdue) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})

        def by_the_producer(topic: str) -> None:
            create_topic(admin, topic, partitions=1, timeout_s=60, say=print)

        def by_the_worker(topic: str) -> None:
            kafka_topics.create(admin, topic, 1, 1, {})

        for number, make in enumerate((by_the_producer, by_the_worker)):
            attempts = itertools.count()
            while not refused(admin, f"by-hand-{number}-{next(attempts)}"):
                time.sleep(0.05)
            make(f"made-{number}")
        deadline = time.monotonic() + 60
        while not {"made-0", "made-1"} <= admin.list_topics(timeout=60).topics.keys():  # the broker hears of it later
            assert time.monotonic() < deadline
            time.sleep(0.1)
        with pytest.raises(TopicError, match="only 1 broker"):
            kafka_topics.create(admin, "too-many", 1, 3, {})
        with pytest.raises(TopicError, match="only 1 broker"):
            create_topic(admin, "too-many", partitions=1, replication=3, timeout_s=60, say=print)


def refused(admin: AdminClient, topic: str) -> bool:
    error = admin.create_topics([NewTopic(topic, 1, 1)])[topic].exception(60)
    assert error is None or no_broker_is_let_in(error.args[0]), error
    return error is not None
