"""A worker at work and the claims: what somebody else has claimed since it started halts its lanes."""

from __future__ import annotations

import asyncio
import threading
import uuid
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.worker.claim_check import ClaimCheck
from kafka_ratchet.app.worker.claims import OUTPUT, Claims, WriterClaim, claim
from kafka_ratchet.app.worker.topics import prepare_owners
from kafka_ratchet.errors import TopicTaken
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.security import client_options
from tests.transport.kafka_side import until


async def test_two_workers_that_claim_at_once_fence_each_other_without_a_word(
    broker: str, capfd: pytest.CaptureFixture[str]
) -> None:
    name = f"claims-{uuid.uuid4().hex[:8]}"
    settings = Settings(app=name, streams={"events": StreamSettings(input="in", output=name, dead_letters="dead")})
    prepare_owners(AdminClient({"bootstrap.servers": broker}), settings)
    first_holds, second_holds = threading.Event(), threading.Event()
    asked = {"first": 0, "second": 0}

    def claim_as(worker: str) -> None:
        def decide(claims: Claims) -> Claims:
            asked[worker] += 1
            if worker == "second" and asked[worker] == 1:
                assert first_holds.wait(60)
            if asked[worker] == 2:  # asked by a producer that holds the id
                (first_holds if worker == "first" else second_holds).set()
                assert second_holds.wait(60)  # the first one's producer is fenced now
            return {} if name in claims else {name: WriterClaim(name, "events", OUTPUT, "A" * 22)}

        claim(settings, broker, decide)

    await asyncio.gather(asyncio.to_thread(claim_as, "first"), asyncio.to_thread(claim_as, "second"))
    assert asked["first"] == 3  # once more, after it was fenced
    assert "FATAL" not in capfd.readouterr().err


async def test_a_claim_that_another_makes_halts_a_lane_that_runs(broker: str) -> None:
    name = f"claims-{uuid.uuid4().hex[:8]}"
    settings = Settings(app=name, streams={"events": StreamSettings(input="in", output=name, dead_letters="dead")})
    prepare_owners(AdminClient({"bootstrap.servers": broker}), settings)

    def claimed_by(app: str) -> None:
        claim(settings, broker, lambda _: {name: WriterClaim(app, "events", OUTPUT, "A" * 22)})

    await asyncio.to_thread(claimed_by, name)
    cluster = Cluster(client_options(broker, {}))
    await cluster.start(30)
    check, halted = ClaimCheck(cluster, settings), list[Exception]()
    lane: Any = SimpleNamespace(
        spec=SimpleNamespace(stream="events"), state=SimpleNamespace(changelog=f"{name}-changelog"), halt=halted.append
    )
    watch = asyncio.create_task(check.watch(lambda: [lane]))
    try:
        await asyncio.gather(*(check.refuse("events", f"{name}-changelog") for _ in range(3)))
        assert halted == []
        await asyncio.to_thread(claimed_by, "another")
        with pytest.raises(TopicTaken, match=f"{name}: is written by application 'another'"):
            await check.refuse("events", f"{name}-changelog")
        await until(lambda: halted, "the lane to be halted")
        assert isinstance(halted[0], TopicTaken)
        advice = str(halted[0])  # `latest` would skip what the other one has not read
        assert "--adopt --from OFFSET --reason TEXT`, which shows the plan" in advice
        assert "--describe --group another`" in advice
    finally:
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch
        await cluster.close()
