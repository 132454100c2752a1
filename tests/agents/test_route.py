"""Where records go by their identity, byte for byte, and what becomes of those that have none."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from kafka_ratchet.agents.sends import router
from kafka_ratchet.app.partitioner import Partitioner
from kafka_ratchet.rule.identity import Identity
from kafka_ratchet.testing.program_run import lane_spec
from kafka_ratchet.transport.delivery import Delivery
from kafka_ratchet.transport.policy import Policy
from kafka_ratchet.transport.sent_topics import SentTopic
from tests.agents.test_deduplicate import Row, fetched, row, rows_of

PARTITIONS = 5


def routed(identity: str, rows: list[Row]) -> tuple[dict[int, list[Row]], list[Row]]:
    """What was sent by partition, and the dead letters."""
    spec = replace(lane_spec("events"), partition=2, sends={"sent": SentTopic(PARTITIONS, 1 << 20, "hooks")})

    async def send() -> Delivery:
        delivery = Delivery(spec, Policy(deduplicate=False), fetched(rows))
        await router(Identity.parse(identity), "sent")(delivery, np.ones(len(rows), np.bool_))
        return delivery

    sent, letters = defaultdict[int, list[Row]](list), list[Row]()
    for topic, partition, encoded in asyncio.run(send()).outputs:
        (sent[partition] if topic == "sent" else letters).extend(rows_of(encoded))
    return dict(sent), letters


@pytest.mark.parametrize(("identity", "at"), [("header:ratchet-producer", 2), ("key", 0), ("field:id", 1)])
def test_records_of_one_identity_go_to_the_partition_that_murmur2_gives_in_their_order(identity: str, at: int) -> None:
    names = [b"%d" % (number % 23) for number in range(200)]
    made = [row(name, b"%d" % number, b'{"id": %s}' % name, 1_000 + number) for number, name in enumerate(names)]
    rows = [(name, *each[1:]) for name, each in zip(names, made, strict=True)]
    sent, letters = routed(identity, rows)  # type: ignore[arg-type]
    assert letters == []
    assert sorted(each for part in sent.values() for each in part) == sorted(rows)
    for partition, found in sent.items():
        assert {Partitioner.MURMUR2.place(each[0] or b"", PARTITIONS) for each in found} == {partition}
        assert [each[3] for each in found] == sorted(each[3] for each in found)


def test_what_has_no_identity_becomes_a_dead_letter_and_goes_no_further() -> None:
    rows = [row(b"a", b"1", b'{"id": "x"}'), row(b"a", b"2", b"{}"), row(b"a", b"3", b"no json"), row(b"a", b"4", None)]
    sent, letters = routed("field:id", rows)
    assert [each[1] for part in sent.values() for each in part] == [b'{"id": "x"}']
    said = [(each[1], dict(each[2])["ratchet-reason"], dict(each[2])["ratchet-offset"]) for each in letters]
    assert said == [
        (b"{}", b"identity-missing", b"1"),
        (b"no json", b"value-not-json", b"2"),
        (None, b"identity-missing", b"3"),
    ]
