"""Records that wait for another producer's transaction to end are lag, pending and named wherever one looks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ratchet.app.local.ports import free_port
from tests.app.worker.test_watching import read
from tests.app.worker.test_worker import publish, site
from tests.app.worker_process import WorkerProcess

BEFORE, INSIDE, AFTER = range(1, 101), range(101, 102), range(102, 152)
SAID = "51 offsets, from 100 on, wait for an open transaction"


@pytest.mark.matrix
def test_what_waits_behind_an_open_transaction_is_named_everywhere(broker: str, tmp_path: Path) -> None:
    port = free_port()
    place = site(tmp_path, broker, f"session_timeout_ms = 6000\nweb = {{status_port = {port}}}\n")
    topic = f"{place.app}.in"
    admin = AdminClient({"bootstrap.servers": broker})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    worker = WorkerProcess(place)
    worker.start()
    try:
        worker.wait_for(lambda: "worker runs" in worker.text(), "the worker's start")
        foreign = Producer(
            {"bootstrap.servers": broker, "transactional.id": f"{place.app}-till", "transaction.timeout.ms": 600_000}
        )
        foreign.init_transactions(30)
        publish(broker, topic, [("me", number) for number in BEFORE])
        foreign.begin_transaction()
        headers = [("ratchet-producer", b"me"), ("ratchet-sequence", b"101")]
        foreign.produce(topic, b"me 101", b"me", headers=headers)
        assert foreign.flush(30) == 0
        publish(broker, topic, [("me", number) for number in AFTER])
        worker.wait_for(lambda: place.position(topic) >= 100, "the commit")
        metric = 'ratchet_partition_stalled{cause="open-transaction"'
        worker.wait_for(lambda: metric in read(port, "/metrics"), "the stall to be named")
        who = re.compile(rf"{SAID} \(transactional id '{place.app}-till', producer id \d+, open since 20\d\d-")
        worker.wait_for(lambda: who.search(worker.text()) is not None, "its line in the log")

        metrics = read(port, "/metrics")
        assert 'ratchet_lag_records{partition="0",stream="events"} 51.0' in metrics
        assert 'ratchet_open_transaction_records{partition="0",stream="events"} 51.0' in metrics
        assert 'ratchet_lag_seconds{partition="0",stream="events"} 0.0' not in metrics
        assert read(port, "/readyz") == "ready\nstream events, partition 0: stands still (open-transaction)\n"

        (stream,) = json.loads(place.command("tables", "--json").stdout)["streams"]
        row = stream["partitions"][0]
        assert (row["input_position"], row["input_stable_end"], row["input_end"]) == (100, 100, 151)
        assert (row["lag"], row["blocked"], stream["totals"]["lag"]) == (51, 51, 51)
        assert row["stalled"]["cause"] == "open-transaction"
        assert who.search(row["stalled"]["text"])
        assert SAID in " ".join(place.command("tables").stdout.split())

        proof = place.command("verify", "--json")
        report = json.loads(proof.stdout)
        assert (proof.returncode, report["pending"], report["proven"]) == (3, 51, False)
        (waits,) = report["open_transactions"]
        assert (waits["start"], waits["end"]) == (100, 151)
        assert waits["transactions"][0]["transactional_id"] == f"{place.app}-till"
        assert who.search(" ".join(place.command("verify").stdout.split()))

        doctor = place.command("doctor")
        assert doctor.returncode == 1
        assert who.search(doctor.stdout)

        for sequence in (101, 102, 151):
            why = place.command("why", "--producer", "me", "--sequence", str(sequence))
            assert why.returncode == 0, why.stderr
            assert "waits for an open transaction" in why.stdout
        by_place = place.command("why", "--topic", topic, "--partition", "0", "--offset", "120", "--json")
        (arrival,) = json.loads(by_place.stdout)["arrivals"]
        assert (arrival["verdict"], arrival["lag"], arrival["sequence"]) == ("waiting", 20, 121)
        assert who.search(arrival["blocked"])

        status = place.command("status", "--producer", "me", "--sequence", "151")
        assert status.returncode == 3
        assert status.stdout.startswith("waiting\n")
        assert "waits for an open transaction" in status.stdout
        never = place.command("status", "--producer", "me", "--sequence", "400")
        assert (never.returncode, never.stdout.split("\n")[0]) == (1, "unseen")

        foreign.commit_transaction(30)
        worker.wait_for(lambda: place.position(topic) >= 152, "the rest")
        worker.wait_for(lambda: metric not in read(port, "/metrics"), "the stall to be over")
        worker.wait_for(lambda: "partition moves again" in worker.text(), "its line in the log")
        assert place.command("verify").returncode == 0
        assert place.command("doctor").returncode == 0
    finally:
        worker.end()
