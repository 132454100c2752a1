import asyncio
import random
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from kafka_ratchet.app.local.embedded_kafka import EmbeddedBroker
from kafka_ratchet.tables.map.map import LastSequence
from kafka_ratchet.transport.changelog import KnownPosition
from kafka_ratchet.transport.client.cluster import FetchedPartition
from kafka_ratchet.transport.client.topic_id import id_text
from kafka_ratchet.transport.lane import WORTH_A_COMMIT
from kafka_ratchet.transport.lane_spec import LaneState
from kafka_ratchet.transport.transactions.requests import offset_metadata
from tests.topic_config import recreate_topic
from tests.transport.kafka_side import (
    Read,
    commit_by_hand,
    commit_with_metadata,
    create_topic,
    delete_before,
    read_topic,
    until,
)
from tests.transport.lane_site import PRODUCER, SEQUENCE, MakeSite, Owner, Site

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
NEVER_MS = 600_000
"""A commit interval that no test lives to see the end of."""

NOW_MS = int(time.time() * 1000)
"""Now: after records older than a week the broker begins another segment, and deletes theirs before long."""

Headers = tuple[tuple[str, bytes | None], ...]


def event(sequence: int) -> Read:
    headers = ((PRODUCER, b"me"), (SEQUENCE, b"%d" % sequence))
    return Read(None, b"%d" % sequence, headers, NOW_MS + sequence)


def events(*sequences: int) -> list[Read]:
    return [event(sequence) for sequence in sequences]


def ours(owner: Owner) -> str:
    """Return the metadata that a lane leaves with an offset of its input."""
    return offset_metadata(id_text(owner.lane._topics[owner.lane.spec.topic]), -1)


def numbers(first: int, last: int) -> list[bytes | None]:
    return [b"%d" % sequence for sequence in range(first, last + 1)]


def all_kinds(seed: int) -> list[Read]:
    """Null and empty keys and values, headers of all kinds, timestamps out of order, one in five sent again."""
    dice = random.Random(seed)
    rows: list[Read] = []
    for sequence in range(1, 300):
        if sequence % 5 == 0:
            rows.append(dice.choice(rows))
        headers = ((PRODUCER, b"me"), (SEQUENCE, sequence.to_bytes(8, "big")))
        more: Headers = dice.choice([(), (("größe", None),), (("a", b""), ("a", dice.randbytes(9)))])
        rows.append(
            Read(
                dice.choice([None, b"", dice.randbytes(6)]),
                dice.choice([None, b"", dice.randbytes(80), b"the same " * 9]),
                headers + more,
                NOW_MS + dice.randrange(100_000),
            )
        )
    return rows


DUMPED_BATCH = re.compile(
    r"^baseOffset: \d+ lastOffset: \d+ count: (\d+) .*isTransactional: (\w+) isControl: (\w+) .*"
    r"compresscodec: (\w+) .*isvalid: (\w+)",
    re.MULTILINE,
)
DUMPED_RECORD = re.compile(
    r"^\| offset: \d+ CreateTime: (\d+) keySize: (-?\d+) valueSize: (-?\d+) .*headerKeys: \[(.*?)\](?! endTxnMarker)",
    re.MULTILINE,
)


def counted(owner: Any) -> tuple[int, ...] | None:
    """Return the totals of the owner's partition."""
    progress = owner.sequences.partition(0).progress
    return progress and tuple(progress[:4])


async def test_every_compression_goes_through_byte_for_byte_as_kafka_itself_sees_it(
    make_site: MakeSite, own_broker: EmbeddedBroker, kafka_tool: Callable[..., str]
) -> None:
    sites = {codec: make_site(codec) for codec in CODECS}
    sent = {codec: all_kinds(seed) for seed, codec in enumerate(CODECS)}
    for codec, site in sites.items():
        site.produce(sent[codec], codec)
        (await site.owner()).lane.start()
    for codec, site in sites.items():
        await site.lanes[0].reach(len(sent[codec]))
        distinct = list(dict.fromkeys(sent[codec]))
        assert len(distinct) == 299
        assert read_topic(site.bootstrap, site.output) == distinct
        assert read_topic(site.bootstrap, site.dead) == []
        progress = site.lanes[0].sequences.partition(0).progress
        assert progress is not None
        assert progress[:4] == (len(sent[codec]), 299, len(sent[codec]) - 299, 0)

    def segment(topic: str) -> str:
        return str(own_broker.data_folder / f"{topic}-0" / f"{0:020}.log")

    files = [segment(topic) for site in sites.values() for topic in (site.output, site.changelog)]
    printed = await asyncio.to_thread(
        kafka_tool,
        *("org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--print-data-log", "--files", ",".join(files)),
    )
    assert "rror" not in printed
    dumps = dict(zip(files, printed.split("Dumping ")[1:], strict=True))
    for codec, site in sites.items():
        for topic in (site.output, site.changelog):
            batches = DUMPED_BATCH.findall(dumps[segment(topic)])
            assert {(transactional, valid) for _, transactional, _, _, valid in batches} == {("true", "true")}
            assert {control for _, _, control, _, _ in batches} == {"true", "false"}
        data = [batch for batch in DUMPED_BATCH.findall(dumps[segment(site.output)]) if batch[2] == "false"]
        assert {compression.lower() for _, _, _, compression, _ in data} == {codec}
        assert sum(int(count) for count, *_ in data) == 299
        assert DUMPED_RECORD.findall(dumps[segment(site.output)]) == [
            (
                str(row.timestamp),
                str(-1 if row.key is None else len(row.key)),
                str(-1 if row.value is None else len(row.value)),
                ",".join(name for name, _ in row.headers),
            )
            for row in dict.fromkeys(sent[codec])
        ]


async def test_invalid_records_become_dead_letters_and_the_partition_moves_on(site: Site) -> None:
    bad = [
        Read(b"key", b"no sequence", ((PRODUCER, b"me"), ("mine", None)), 5_000),
        Read(None, None, ((SEQUENCE, b"1x"), (PRODUCER, b"me")), 6_000),
        Read(b"", b"no producer", ((SEQUENCE, b"1"),), 7_000),
    ]
    site.produce([event(1), *bad, event(2)])
    owner = await site.owner()
    owner.lane.start()
    await owner.reach(5)
    assert site.output_values() == [b"1", b"2"]
    where = [("ratchet-topic", site.input.encode()), ("ratchet-partition", b"0")]
    reasons = [b"sequence-missing", b"sequence-not-a-number", b"identity-missing"]
    assert read_topic(site.bootstrap, site.dead) == [
        row._replace(headers=(*row.headers, ("ratchet-reason", why), *where, ("ratchet-offset", b"%d" % offset)))
        for offset, (row, why) in enumerate(zip(bad, reasons, strict=True), 1)
    ]


async def test_aborted_transactions_of_the_input_are_not_forwarded_and_leave_no_lag(site: Site) -> None:
    owner = await site.owner()
    owner.lane.start()
    producer = Producer({"bootstrap.servers": site.bootstrap, "transactional.id": f"source-{site.input}"})
    await asyncio.to_thread(producer.init_transactions, 30)
    offset = 0
    for first, commit in ((1, True), (11, False), (11, True), (21, False)):
        producer.begin_transaction()
        site.send(producer, events(*range(first, first + 10)))
        assert producer.flush(30) == 0
        end = producer.commit_transaction if commit else producer.abort_transaction
        await asyncio.to_thread(end, 30)
        offset += 11  # ten records and a marker
    await owner.reach(offset)
    assert site.output_values() == numbers(1, 20)
    # The end is what a fetch has told; the next one tells that nothing is left.
    await until(lambda: owner.lane.status.end == owner.lane.status.position)


async def test_a_stop_commits_what_is_open(site: Site) -> None:
    owner = await site.owner(commit_interval_ms=NEVER_MS)
    site.produce(events(1, 2, 3))
    owner.lane.start()
    await until(lambda: owner.last() == LastSequence(-1, 3))
    assert site.output_values() == []
    assert owner.lane.status.state is LaneState.RUNNING
    await owner.lane.stop()
    assert site.output_values() == numbers(1, 3)
    assert owner.last() == LastSequence(3, 3)
    assert (owner.lane.status.state, owner.lane.status.position) == (LaneState.STOPPED, 3)


async def test_many_records_commit_before_the_interval_ends(site: Site) -> None:
    owner = await site.owner(commit_interval_ms=NEVER_MS, records_per_transaction=5)
    site.produce(events(*range(1, 8)))
    owner.lane.start()
    await owner.reach(7)
    assert site.output_values() == numbers(1, 7)


async def test_a_lane_that_has_caught_up_with_many_records_does_not_wait_for_the_interval(site: Site) -> None:
    site.produce(events(*range(1, WORTH_A_COMMIT + 1)))
    owner = await site.owner(commit_interval_ms=NEVER_MS)
    owner.lane.start()
    await owner.reach(WORTH_A_COMMIT)
    assert len(site.output_values()) == WORTH_A_COMMIT
    site.produce(events(WORTH_A_COMMIT + 1))  # this one alone is not worth a transaction
    await until(lambda: owner.last().pushed == WORTH_A_COMMIT + 1, "the record is judged")
    await asyncio.sleep(0.2)
    assert owner.lane.status.position == WORTH_A_COMMIT


async def test_the_next_owner_fences_the_last_and_knows_its_sequences(site: Site) -> None:
    site.produce(events(1, 2, 3))
    first = await site.owner("first")
    first.lane.start()
    await first.reach(3)
    await first.lane.stop()

    zombie = await site.owner("zombie", commit_interval_ms=NEVER_MS)
    zombie.lane.start()
    site.produce(events(4, 5))
    await until(lambda: zombie.last() == LastSequence(3, 5))
    second = await site.owner("second")  # with a store of its own: all it knows is in the changelog
    second.lane.start()
    await second.reach(5)
    assert second.lane.status.restored > 0
    assert second.last() == LastSequence(5, 5)
    await zombie.lane.stop()
    assert "fenced" in (zombie.lane.status.error or "")
    assert zombie.last().persisted == zombie.last().pushed == 3

    site.produce(events(*range(1, 8)))
    await second.reach(12)
    assert site.output_values() == numbers(1, 7)


async def test_the_next_start_goes_on_from_the_local_store(site: Site) -> None:
    site.produce(events(1, 2, 3))
    first = await site.owner()
    first.lane.start()
    await first.reach(3)
    await first.close()
    site.produce(events(2, 3, 4))
    again = await site.owner()
    again.lane.start()
    await again.reach(6)
    assert again.lane.status.restored == 0
    assert site.output_values() == numbers(1, 4)


async def test_a_lane_at_rest_makes_the_snapshot_that_its_last_commit_did_not(site: Site) -> None:
    owner = await site.owner()
    owner.lane.start()
    site.produce(events(1))
    await owner.reach(1)
    partition = owner.sequences.partition(0)
    site.produce(events(2))  # within a second of the first, whose snapshot it cannot be part of
    await owner.reach(2)
    await until(lambda: partition._stored == partition.position, "the snapshot")
    assert partition.last(b"me") == LastSequence(2, 2)


async def test_an_agent_that_fails_gets_its_batch_again(site: Site) -> None:
    owner = await site.owner()
    owner.processor.failing = 1
    site.produce(events(1, 2, 3))
    owner.lane.start()
    await until(lambda: owner.lane.status.error == "the agent's own mistake")
    assert owner.lane.status.state is LaneState.HALTED
    await owner.reach(3)
    assert (owner.lane.status.state, owner.lane.status.error) == (LaneState.RUNNING, None)
    assert site.output_values() == numbers(1, 3)
    assert counted(owner) == (3, 3, 0, 0)


async def test_what_goes_wrong_beside_a_lane_is_said_and_tried_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = await site.owner()
    changelog, failing = owner.lane._changelog, [ValueError("nobody expects this")]
    sight = changelog.sight

    async def fails_once() -> KnownPosition | None:
        if failing:
            raise failing.pop()
        return await sight()

    monkeypatch.setattr(changelog, "sight", fails_once)
    owner.lane.start()
    await until(lambda: owner.lane.status.error == "nobody expects this")
    site.produce(events(1))
    await owner.reach(1)


async def test_an_agent_that_is_stopped_with_a_batch_in_hand_leaves_the_lane_alive(site: Site) -> None:
    owner = await site.owner()
    owner.processor.is_stopped = True
    site.produce(events(1, 2))
    owner.lane.start()
    with pytest.raises(asyncio.CancelledError):
        await owner.agent
    await until(lambda: "agent was stopped while it held offset 0" in (owner.lane.status.error or ""))
    owner.agent = asyncio.create_task(owner.run_agent())
    await owner.reach(2)
    assert site.output_values() == numbers(1, 2)


async def test_a_stop_while_the_agent_holds_a_batch_leaves_it_to_the_next_owner(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafka_ratchet.transport.delivery.AGENT_WAIT_S", 0.1)
    owner = await site.owner()
    owner.agent.cancel()
    site.produce(events(1, 2))
    owner.lane.start()
    await until(lambda: owner.deliveries.qsize() == 1)
    await owner.lane.stop()
    assert "stopped while the agent held offset 0" in (owner.lane.status.error or "")
    assert site.output_values() == []
    second = await site.owner()
    second.lane.start()
    await second.reach(2)
    assert site.output_values() == numbers(1, 2)


async def test_records_that_retention_deleted_unread_halt_the_lane(site: Site) -> None:
    site.produce(events(1, 2, 3))
    first = await site.owner()
    first.lane.start()
    await first.reach(3)
    await first.close()
    site.produce(events(*range(4, 11)))
    delete_before(site.bootstrap, site.input, 6)
    second = await site.owner()
    second.lane.start()
    await until(lambda: second.lane.status.state is LaneState.HALTED)
    assert re.match(
        rf"{site.input}, partition 0: offset 3 is to be read next, but the topic holds 6 to 10\. Retention.*halted\.md",
        second.lane.status.error or "",
    )
    assert site.output_values() == numbers(1, 3)


async def test_records_deleted_before_a_lanes_first_read_halt_the_next_owner(site: Site) -> None:
    first = await site.owner("first")
    first.lane.start()
    await until(lambda: first.lane.status.commits == 1, "the position of the first start")
    assert not first.sequences.partition(0).is_made  # as for every partition without a record
    await first.close()
    site.produce(events(*range(1, 11)))
    delete_before(site.bootstrap, site.input, 6)
    second = await site.owner("second")
    second.lane.start()
    await until(lambda: second.lane.status.state is LaneState.HALTED)
    assert "offset 0 is to be read next, but the topic holds 6 to 10" in (second.lane.status.error or "")
    assert site.output_values() == []


async def test_records_deleted_before_a_running_lanes_first_read_halt_it_for_good(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, thaws = await site.owner(), asyncio.Event()
    fetch = owner.cluster.fetch

    async def late(topic: str, *args: Any, **options: Any) -> FetchedPartition:
        if topic == site.input:
            await thaws.wait()
        return await fetch(topic, *args, **options)

    monkeypatch.setattr(owner.cluster, "fetch", late)
    owner.lane.start()
    await until(lambda: owner.lane.status.commits == 1, "the position of the first start")
    site.produce(events(*range(1, 11)))
    delete_before(site.bootstrap, site.input, 6)
    thaws.set()
    await until(lambda: owner.lane.status.restarts >= 3, "three attempts")
    assert owner.lane.status.halted == "PositionLost"
    assert (owner.lane.status.commits, site.output_values()) == (1, [])


async def test_an_input_created_again_before_the_first_record_halts_the_lane(site: Site) -> None:
    first = await site.owner()
    first.lane.start()
    await until(lambda: first.lane.status.commits == 1, "the position of the first start")
    await first.close()
    recreate_topic(site.bootstrap, site.input)
    site.produce(events(1))
    second = await site.owner()
    second.lane.start()
    await until(lambda: second.lane.status.state is LaneState.HALTED)
    assert f"its input was {site.input}" in (second.lane.status.error or "")
    assert site.output_values() == []


async def test_a_misspelt_input_is_corrected_before_the_first_record(site: Site) -> None:
    misspelt = await site.owner()
    misspelt.lane.start()
    await until(lambda: misspelt.lane.status.commits == 1, "the position of the first start")
    await misspelt.close()
    old, site.input = site.input, create_topic(site.bootstrap, "corrected.in")
    site.produce(events(*range(1, 11)))
    delete_before(site.bootstrap, site.input, 5)
    corrected = await site.owner(group=f"group-{old}")
    corrected.lane.start()
    await corrected.reach(10)
    assert (corrected.lane.status.restarts, site.output_values()) == (0, numbers(6, 10))
    await corrected.close()
    site.input = old
    back = await site.owner(group=f"group-{old}")
    back.lane.start()
    await until(lambda: back.lane.status.state is LaneState.HALTED)
    assert "its input was corrected.in" in (back.lane.status.error or "")


async def test_a_misspelt_output_is_corrected_before_the_first_record(site: Site) -> None:
    misspelt = await site.owner()
    misspelt.lane.start()
    await until(lambda: misspelt.lane.status.commits == 1, "the position of the first start")
    await misspelt.close()
    site.output = create_topic(site.bootstrap, "corrected.out")
    site.produce(events(1, 2, 3))
    corrected = await site.owner()
    corrected.lane.start()
    await corrected.reach(3)
    assert (corrected.lane.status.restarts, site.output_values()) == (0, numbers(1, 3))


async def test_an_output_that_is_deleted_under_a_lane_halts_it_by_name(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("client.cluster", "transactions.outcome"):
        monkeypatch.setattr(f"kafka_ratchet.transport.{module}.GONE_AFTER_S", 0.5)
    monkeypatch.setattr("kafka_ratchet.transport.transactions.outcome.LEADERS_WITHIN_S", 1.0)
    site.produce(events(1))
    owner = await site.owner()
    owner.lane.start()
    await owner.reach(1)
    admin = AdminClient({"bootstrap.servers": site.bootstrap})
    admin.delete_topics([site.output])[site.output].result(30)
    site.produce(events(2))
    await until(lambda: owner.lane.status.state is LaneState.HALTED)
    assert (owner.lane.status.error or "").startswith(f"{site.output}: the topic does not exist any more")
    await owner.lane.stop()


async def test_a_local_store_ahead_of_its_changelog_halts_the_lane(site: Site) -> None:
    site.produce(events(1, 2, 3))
    first = await site.owner()
    first.lane.start()
    await first.reach(3)
    await first.close()
    position = first.sequences.partition(0).position
    assert position > 0
    site.changelog = create_topic(site.bootstrap, "made-again", cleanup_policy="compact")
    second = await site.owner()
    second.lane.start()
    await until(lambda: second.lane.status.state is LaneState.HALTED)
    assert re.match(
        rf"{site.changelog}: the name belonged to topic id .*halted\.md",
        second.lane.status.error or "",
    )


async def test_a_changelog_that_lost_its_beginning_halts_a_lane_that_needs_it(make_site: MakeSite) -> None:
    site = make_site("truncated", changelog_policy="compact,delete")
    site.produce(events(1, 2, 3))
    first = await site.owner("first")
    first.lane.start()
    await first.reach(3)
    delete_before(site.bootstrap, site.changelog, 1)
    await first.close()
    second = await site.owner("second")
    second.lane.start()
    await until(lambda: second.lane.status.state is LaneState.HALTED)
    assert re.match(
        rf"{site.changelog}, partition 0: .* store ends at offset 0, but the changelog begins at 1: .*halted\.md",
        second.lane.status.error or "",
    )
    again = await site.owner("first")  # whose store has all of it
    again.lane.start()
    site.produce(events(3, 4))
    await again.reach(5)
    assert site.output_values() == numbers(1, 4)


async def test_an_input_of_ratchets_own_that_lost_what_nobody_has_read_halts_its_lane(site: Site) -> None:
    site.produce(events(1, 2, 3))
    delete_before(site.bootstrap, site.input, 1)
    internal = await site.owner("internal", begins_at_0=True)
    internal.lane.start()
    await until(lambda: internal.lane.status.state is LaneState.HALTED)
    assert "begins at offset 1, and this stream has read none of it" in (internal.lane.status.error or "")
    await internal.close()
    other = await site.owner("other")  # an input of somebody else's, whose retention may have been at work
    other.lane.start()
    await other.reach(3)
    assert site.output_values() == numbers(2, 3)


async def test_a_changelog_that_was_lost_with_the_store_halts_the_lane_until_a_person_decides(site: Site) -> None:
    site.produce(events(1, 2, 3))
    first = await site.owner("first")
    first.lane.start()
    await first.reach(3)
    await first.close()
    kept, site.changelog = site.changelog, create_topic(site.bootstrap, "made-again", cleanup_policy="compact")
    second = await site.owner("second")
    second.lane.start()
    await until(lambda: second.lane.status.state is LaneState.HALTED)
    assert re.match(
        rf"{site.changelog}, partition 0: the changelog covers {site.input} below offset 0, but the group "
        rf"group-{site.input} has committed offset 3\. .*halted\.md",
        second.lane.status.error or "",
    )
    await second.close()
    assert site.output_values() == numbers(1, 3)
    assert kept != site.changelog
    commit_by_hand(site.bootstrap, f"group-{site.input}", site.input, 3)
    third = await site.owner("third")
    third.lane.start()
    await until(lambda: third.lane.status.state is LaneState.HALTED)
    assert "the changelog has no position" in (third.lane.status.error or "")
    await third.close()
    assert site.output_values() == numbers(1, 3)


@pytest.mark.parametrize(
    ("offset", "sentence"), [(1, "2 offsets would be read again"), (5, "Offsets 3 to 4, 2 of them")]
)
async def test_an_offset_of_another_client_halts_the_lane(site: Site, offset: int, sentence: str) -> None:
    site.produce(events(1, 2, 3))
    first = await site.owner()
    first.lane.start()
    await first.reach(3)
    await first.close()
    site.produce(events(4, 5))
    commit_by_hand(site.bootstrap, f"group-{site.input}", site.input, offset)
    second = await site.owner()
    second.lane.start()
    await until(lambda: second.lane.status.state is LaneState.HALTED)
    assert sentence in (second.lane.status.error or "")
    await second.close()
    assert site.output_values() == numbers(1, 3)
    await commit_with_metadata(site.bootstrap, f"group-{site.input}", site.input, 3, ours(first))
    third = await site.owner()
    third.lane.start()
    await third.reach(5)
    assert site.output_values() == numbers(1, 5)


async def test_an_older_offset_of_our_own_is_not_believed(site: Site) -> None:
    # As Kafka answers for a moment after an unclean restart.
    site.produce([*events(1, 2), Read(None, b"no sequence", (), NOW_MS), *events(3)])
    first = await site.owner()
    first.lane.start()
    await first.reach(4)
    await first.close()
    await commit_with_metadata(site.bootstrap, f"group-{site.input}", site.input, 1, ours(first))
    second = await site.owner()
    second.lane.start()
    site.produce(events(4))
    await second.reach(5)
    assert site.output_values() == numbers(1, 4)
    assert counted(second) == (5, 4, 0, 1)
    assert len(read_topic(site.bootstrap, site.dead)) == 1


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"message_timestamp_before_max_ms": 1_000}, "InvalidTimestamp"),
        ({"cleanup_policy": "compact"}, "InvalidRecord"),
    ],
)
async def test_a_record_that_the_output_never_takes_halts_the_lane_and_says_where(
    site: Site, limits: dict[str, Any], reason: str
) -> None:
    site.output = create_topic(site.bootstrap, "narrow", **limits)
    site.produce([Read(None, b"old", events(1)[0].headers, NOW_MS - 60_000)])
    owner = await site.owner()
    owner.lane.start()
    await until(lambda: owner.lane.status.state is LaneState.HALTED)
    assert "Kafka refuses the records" in (owner.lane.status.error or "")
    assert reason in (owner.lane.status.error or "")
    assert f"{site.output}, partition 0" in (owner.lane.status.error or "")


async def test_open_records_in_the_changelog_halt_a_lane_until_they_are_ended(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafka_ratchet.transport.changelog.OPEN_WITHIN_S", 0.2)
    # In the place of a lane whose transactional id Kafka has forgotten.
    forgotten = Producer({"bootstrap.servers": site.bootstrap, "transactional.id": f"forgotten-{site.input}"})
    await asyncio.to_thread(forgotten.init_transactions, 30)
    forgotten.begin_transaction()
    forgotten.produce(site.changelog, b"value", b"key")
    assert forgotten.flush(30) == 0
    site.produce(events(1))
    owner = await site.owner()
    owner.lane.start()
    await until(lambda: owner.lane.status.state is LaneState.HALTED)
    assert owner.lane.status.halted == "TransactionError"
    assert re.match(
        rf"{site.changelog}, partition 0: the transaction from offset 0 on is open.*--open-transaction.*halted\.md",
        owner.lane.status.error or "",
    )
    assert site.output_values() == []
    await asyncio.to_thread(forgotten.abort_transaction, 30)
    await owner.reach(1)
    assert site.output_values() == numbers(1, 1)


async def test_an_offset_that_kafka_has_forgotten_is_in_the_changelog(site: Site) -> None:
    site.produce(events(1, 2, 3))
    first = await site.owner()
    first.lane.start()
    await first.reach(3)
    await first.close()
    second = await site.owner(group=f"another-group-{site.input}")
    site.produce(events(4))
    second.lane.start()
    await second.reach(4)
    assert site.output_values() == numbers(1, 4)
    assert counted(second) == (4, 4, 0, 0)


async def test_the_broker_is_killed_and_comes_back(make_site: MakeSite, own_broker: EmbeddedBroker) -> None:
    site, other = make_site("killed"), make_site("unreachable")
    owner, waiting = await site.owner(), await other.owner()
    owner.lane.start()
    site.produce(events(1, 2, 3))
    await owner.reach(3)
    await asyncio.to_thread(own_broker.kill)
    try:
        waiting.lane.start()
        await until(lambda: waiting.lane.status.state is LaneState.STARTING)
        await asyncio.sleep(0.1)
        await asyncio.wait_for(waiting.lane.stop(), 30)  # though there is nobody to say good-bye to
    finally:
        await asyncio.to_thread(own_broker.start)
    assert waiting.lane.status.state is LaneState.STOPPED
    site.produce(events(2, 3, 4, 5))
    await owner.reach(7)
    assert site.output_values() == numbers(1, 5)
