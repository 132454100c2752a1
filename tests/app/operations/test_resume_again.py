"""`ratchet resume` with records that would be processed a second time, on states that a test commits."""

from __future__ import annotations

import asyncio
import re
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ratchet.app.cli import run as run_command
from kafka_ratchet.app.operations.missing_topics import prepare_new
from kafka_ratchet.app.operations.resume import CHANGELOG_BYTES, Plan, Resume, ResumeOptions
from kafka_ratchet.app.operations.resume_asked import sentences
from kafka_ratchet.app.worker.ownership import StreamOwnership
from kafka_ratchet.errors import Aborted, BrokerUnavailable, SettingsError, TopicMissing
from kafka_ratchet.producers import made_topic
from kafka_ratchet.tables.totals import PROGRESS, Progress
from kafka_ratchet.tables.values.codec import Codec
from kafka_ratchet.tables.values.own_table import OWN, TIME, windows_key
from kafka_ratchet.tables.values.table_partition import prefix_of
from kafka_ratchet.transport.batch.encoding import encode_entries
from kafka_ratchet.transport.client.cluster import Cluster
from kafka_ratchet.transport.client.describe import DescribeProducersRequest
from kafka_ratchet.transport.move import PartitionMove
from kafka_ratchet.transport.owner import INPUT, Owner, Topic
from kafka_ratchet.transport.transactions.hanging import Hanging
from tests.app.worker_process import Site
from tests.topic_config import recreate_topic

STREAM = """
[streams.by-user]
input = "{source}"
output = "{app}.out"
dead_letters = "{app}.dead"
partitions = {partitions}
"""
Entries = list[tuple[bytes, bytes]]
Searched = list[tuple[list[Any], dict[str, Any]]]
MakeSite = Callable[..., Site]


@pytest.fixture
def make(broker: str, tmp_path: Path) -> MakeSite:
    """Return a function that creates the topics of a stream, with three records in each input partition."""

    def made(source: str = "{app}.in", partitions: int = 1) -> Site:
        app = f"again-{uuid.uuid4().hex[:8]}"
        topic = source.format(app=app)
        place = Site(tmp_path, broker, app, STREAM.format(source=topic, app=app, partitions=partitions))
        assert made_topic(AdminClient({"bootstrap.servers": broker}), NewTopic(topic, partitions, 1), 30)
        prepare_new(place.settings, broker, "by-user")
        producer = Producer({"bootstrap.servers": broker})
        for number in range(3 * partitions):
            producer.produce(topic, b"%d" % number, b"me", partition=number % partitions)
        assert producer.flush(30) == 0
        return place

    return made


def decision(
    place: Site, *, forget: bool = False, recount: bool = False, start: str | None = "earliest", adopt: bool = False
) -> Resume:
    wanted = ResumeOptions(start, "to be sure", forget, adopt, recount)
    return Resume(place.settings, place.broker, "by-user", wanted, "ann")


def plan(asked: Resume, numbers: list[int]) -> list[Plan]:
    return asyncio.run(asked.plan(numbers))


def process(place: Site, entries: Entries, number: int = 0, records: int = 3) -> None:
    """Commit the first records of a partition as processed, together with entries of the changelog."""
    asked = decision(place)

    async def commit() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with asked.connected() as cluster:
                move = asked.move_of(cluster, number, asked.state_of(number, Path(folder)))
                await move.take_over()
                await move.read()
                whole = [(PROGRESS, Progress(records, records, 0, 0).pack()), *entries]
                topics = (await asked.owner_now(cluster)).topics
                await move.commit(encode_entries(whole, CHANGELOG_BYTES), records, topics[INPUT].id)
                move.close()

    asyncio.run(commit())


def test_records_of_an_internal_stream_are_never_judged(make: MakeSite) -> None:
    place = make("{app}-repartition.by-user")
    process(place, [])
    with pytest.raises(SettingsError, match=r"3 records, the first at offset 0; deduplication is off.*Add --recount"):
        plan(decision(place), [0])
    (accepted,) = plan(decision(place, recount=True), [0])
    assert (accepted.passes_again, accepted.letters_again) == (3, 0)


@pytest.mark.parametrize("records", [0, 1])
def test_a_partition_without_records_forwards_none_a_second_time(
    make: MakeSite, monkeypatch: pytest.MonkeyPatch, records: int
) -> None:
    async def off(asked: Resume) -> tuple[bool, tuple[()]]:
        return False, ()

    monkeypatch.setattr(Resume, "_decided_by_policy", off)
    place = make()
    replaced = {INPUT: Topic(f"{place.app}.in", "A" * 22)}
    owner = Owner(place.app, "by-user", place.settings.streams["by-user"].rule, replaced)
    process(place, [owner.pack()], records=records)
    if records:
        with pytest.raises(SettingsError, match=r"deduplication is off.*Add --recount"):
            plan(decision(place), [0])
    else:
        assert plan(decision(place), [0])[0].recounted == []


@pytest.mark.parametrize("records", [0, 1])
def test_what_was_corrected_before_the_first_record_is_no_finding(make: MakeSite, records: int) -> None:
    place = make()
    rule = {**place.settings.streams["by-user"].rule, "sequence": "header:misspelt"}
    owner = Owner(place.app, "by-user", rule, {INPUT: Topic("misspelt", "A" * 22)})
    process(place, [owner.pack()], records=records)
    asked = decision(place)

    async def fits() -> bool:
        async with asked.connected() as cluster:
            return await asked._others_fit(cluster, [])

    assert asyncio.run(fits()) == (not records)
    if records:
        with pytest.raises(SettingsError, match=r"sequence = 'header:misspelt'.*its input was misspelt.*add --forget"):
            plan(asked, [0])
    else:
        (found,) = plan(asked, [0])
        assert (found.found, found.before, found.recounted) == ([], 0, [])


def test_tables_are_named_before_records_are_added_to_them_again(make: MakeSite) -> None:
    place = make()
    own = Codec("", str, None, "json")
    keys = (OWN + own.key_bytes(key) for key in (windows_key("visits"), TIME))
    process(place, [(prefix_of("totals") + b"ann", b"3"), *((key, b"60000") for key in keys)])
    with pytest.raises(
        SettingsError, match=r"tables of a program, now or earlier \(totals, visits\).*offsets 0 to 2.*--recount"
    ):
        plan(decision(place, forget=True), [0])
    assert plan(decision(place, forget=True, recount=True), [0])[0].after == 0
    assert plan(decision(place, forget=True, start=None), [0])[0].after == 3


def run(asked: Resume, *numbers: int) -> list[Plan]:
    return asyncio.run(asked.execute([*numbers]))


@contextmanager
def away_at_partition_1(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let Kafka go away at each take-over of partition 1."""
    take_over = PartitionMove.take_over

    async def fail(move: PartitionMove) -> None:
        if move.partition == 1:
            raise BrokerUnavailable("Kafka has gone away")
        await take_over(move)

    with monkeypatch.context() as failing:
        failing.setattr(PartitionMove, "take_over", fail)
        yield


@pytest.mark.parametrize("forgets", [True, False])
def test_a_failure_names_the_changed_partitions_and_a_repetition_is_refused(
    make: MakeSite, monkeypatch: pytest.MonkeyPatch, forgets: bool
) -> None:
    place = make(partitions=2)
    asked = decision(place, forget=forgets, recount=not forgets)
    with away_at_partition_1(monkeypatch):
        with pytest.raises(BrokerUnavailable, match=r"away. Already changed: partition 0 of .*others: partition 1$"):
            run(asked, 0, 1)
    assert len(plan(asked, [0, 1])) == 2  # no record is read again yet
    process(place, [])
    with pytest.raises(
        SettingsError,
        match=r"this decision for partition 0 .*not for partition 1, .*halt there\..*with --partition for",
    ):
        run(asked, 0, 1)
    assert len(plan(decision(place, start="latest", forget=forgets, recount=not forgets), [0, 1])) == 2  # another one
    run(asked, 1)
    assert len(plan(asked, [0, 1])) == 2  # all have it: the operator repeats it on purpose


def test_an_old_decision_does_not_forbid_the_same_one_after_a_new_halt(make: MakeSite) -> None:
    place = make(partitions=2)
    in_place, anew = [decision(place, forget=True, start=start) for start in (None, "earliest")]
    process(place, [], 0)
    process(place, [], 1)
    run(in_place, 0)
    assert [each.again for each in plan(in_place, [0, 1])] == [0, 0]
    run(anew, 0)
    process(place, [], 0)
    with pytest.raises(SettingsError, match="an earlier command has recorded"):
        plan(anew, [0, 1])
    recreate_topic(place.broker, f"{place.app}.out", 2)
    assert [each.again for each in plan(decision(place, forget=True), [0, 1])] == [3, 3]


def test_an_adoption_without_another_claim_can_be_repeated(make: MakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    place = make(partitions=2)
    asked = decision(place, forget=True, adopt=True)
    with away_at_partition_1(monkeypatch):
        with pytest.raises(BrokerUnavailable, match=r"Run the command again before a worker starts"):
            run(asked, 0, 1)
    assert len(plan(asked, [0, 1])) == 2
    process(place, [])  # a worker was started nevertheless
    with pytest.raises(SettingsError, match=r"Run the command with --partition, and without --adopt, for"):
        run(asked, 0, 1)
    run(decision(place, forget=True), 1)


def test_a_commit_in_doubt_is_not_repeated(make: MakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    place, written, write = make(), list[int](), PartitionMove.write

    async def lose_the_answer(move: PartitionMove, *given: Any, **more: Any) -> None:
        await write(move, *given, **more)
        written.append(move.partition)
        raise Aborted("the transaction is not known to be committed")

    monkeypatch.setattr(PartitionMove, "write", lose_the_answer)
    (done,) = asyncio.run(decision(place, forget=True).execute([0]))
    assert (done.after, written) == (0, [0])


@pytest.mark.parametrize("failure", [BrokerUnavailable("Kafka has gone away"), KeyboardInterrupt()])
def test_a_commit_in_doubt_is_named_when_the_command_fails(
    make: MakeSite, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], failure: BaseException
) -> None:
    place, take_over, write, doubtful = make(partitions=3), PartitionMove.take_over, PartitionMove.write, list[int]()
    asked = decision(place, forget=True)

    async def lose_the_answer(move: PartitionMove, *given: Any, **more: Any) -> None:
        await write(move, *given, **more)
        if move.partition == 1:
            doubtful.append(1)
            raise Aborted("the transaction is not known to be committed")

    async def fail(move: PartitionMove) -> None:
        if doubtful:
            raise failure
        await take_over(move)

    with monkeypatch.context() as failing:
        failing.setattr(PartitionMove, "write", lose_the_answer)
        failing.setattr(PartitionMove, "take_over", fail)
        with pytest.raises(type(failure)) as raised:
            run(asked, 0, 1, 2)
    said = str(raised.value) if isinstance(failure, BrokerUnavailable) else capsys.readouterr().out
    assert re.search(
        r"Already changed: partition 0 of .*Perhaps changed: partition 1 of .*--partition 1 and without --execute.*"
        r"for each of the others: partition 2\b",
        said,
    )
    shown = [line for each in plan(asked, [1, 2]) for line in sentences(each, done=False) if "newest" in line]
    assert [line.split(" at ")[0] for line in shown] == ["  newest decision: resume --from earliest --forget, by ann"]


def test_a_rolled_back_attempt_is_not_in_doubt(make: MakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    place, tries = make(), list[int]()

    async def fail(move: PartitionMove, *given: Any, **more: Any) -> None:
        tries.append(move.partition)
        raise Aborted("nothing was committed")

    monkeypatch.setattr(PartitionMove, "write", fail)
    planned = Resume._planned

    async def stop(asked: Resume, *given: Any) -> Any:
        if tries:
            raise SettingsError("stopped")
        return await planned(asked, *given)

    monkeypatch.setattr(Resume, "_planned", stop)
    with pytest.raises(SettingsError, match=r"^stopped$"):
        run(decision(place, forget=True), 0)


def test_the_last_of_single_decisions_renews_the_claim(make: MakeSite) -> None:
    place = make(partitions=2)
    run(decision(place), 0, 1)
    recreate_topic(place.broker, f"{place.app}.out", 2)
    for number in (0, 1):
        asked = decision(place)
        assert asked.ownership.is_stale(asked.changelog)
        run(asked, number)
    asked = decision(place)
    assert not asked.ownership.is_stale(asked.changelog)


def test_a_failure_after_the_last_partition_says_that_all_are_changed(
    make: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = make(partitions=2)

    def fail(owned: StreamOwnership, changelog: str) -> bool:
        raise BrokerUnavailable("Kafka has gone away")

    monkeypatch.setattr(StreamOwnership, "is_stale", fail)
    with pytest.raises(BrokerUnavailable, match=r"Already changed: partitions 0, 1 of .*Do not repeat the command"):
        run(decision(place), 0, 1)


@contextmanager
def searching(monkeypatch: pytest.MonkeyPatch, found: list[Hanging]) -> Iterator[Searched]:
    """Replace the search for hanging transactions by one that keeps its arguments."""
    asked: Searched = []

    async def search(_: Any, places: list[Any], *__: Any, **options: Any) -> list[Hanging]:
        asked.append((places, options))
        return found

    async def all_of(_: Any, places: list[Any], *__: Any) -> list[Any]:
        return places

    async def same(*_: Any, **__: Any) -> list[Hanging]:
        return found

    with monkeypatch.context() as patch:
        patch.setattr("kafka_ratchet.app.operations.resume.find_hanging", search)
        patch.setattr("kafka_ratchet.app.operations.resume.open_in", all_of)
        patch.setattr("kafka_ratchet.app.operations.resume.with_known_ends", same)
        yield asked


def test_open_transactions_are_searched_where_a_lane_writes(
    make: MakeSite, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = make(partitions=2)
    sent, own = f"{place.app}.sent", f"{place.app}.out"
    assert made_topic(AdminClient({"bootstrap.servers": place.broker}), NewTopic(sent, 3, 1), 30)
    asked = decision(place)
    with searching(monkeypatch, []) as searched:
        asked.search_also([sent])
        assert asyncio.run(asked.open_transactions([1], commit=None)) == []
    ((places, options),) = searched
    assert (own, 1) in places
    assert options["shared"] == [(sent, number) for number in range(3)]
    assert options["own_id"].endswith("/1")
    with pytest.raises(TopicMissing, match=r"--topic nowhere: the topic does not exist"):
        asked.search_also(["nowhere"])

    command = ["resume", "--stream", "by-user", "--open-transaction", "abort", "--config", str(place.config)]
    with searching(monkeypatch, []):
        assert run_command([*command, "--topic", sent]) == 0
    said = " ".join(capsys.readouterr().out.split())
    none = r"There is no hanging transaction of these partitions in"
    limited = r"and none of their present producer ids in any partition of"
    assert re.search(rf"{none} .*{own}.*, {limited} {sent}\. Other topics", said)
    assert run_command(["resume", "--topic", sent, "--config", str(place.config)]) == 2
    assert "--topic needs --open-transaction" in capsys.readouterr().err


def test_a_topic_that_all_lanes_write_is_searched_once(make: MakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    place = make(partitions=3)
    sent = f"{place.app}.sent"
    assert made_topic(AdminClient({"bootstrap.servers": place.broker}), NewTopic(sent, 4, 1), 30)
    asked = decision(place)
    asked.search_also([sent])
    asked.search_also([sent])  # as with a topic that is searched anyhow
    searched: list[tuple[str, int]] = []
    send = Cluster.send

    async def counted(self: Cluster, node: int, request: Any, connection: Any) -> Any:
        searched.extend(request._places if isinstance(request, DescribeProducersRequest) else ())
        return await send(self, node, request, connection)

    monkeypatch.setattr(Cluster, "send", counted)
    assert asyncio.run(asked.open_transactions([0, 1, 2], commit=None)) == []
    assert sorted(each for each in searched if each[0] == sent) == [(sent, number) for number in range(4)]
    assert len([each for each in searched if each[0] == f"{place.app}.out"]) == 3


def test_open_transactions_of_arrivals_are_searched_in_every_partition(
    broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = f"again-{uuid.uuid4().hex[:8]}"
    stream = STREAM.format(source=f"{app}.in", app=app, partitions=3)
    place = Site(tmp_path, broker, app, stream + 'identity = "key"\nrepartition_by = "identity"\n')
    assert made_topic(AdminClient({"bootstrap.servers": broker}), NewTopic(f"{app}.in", 2, 1), 30)
    name = "by-user-arrivals"
    prepare_new(place.settings, broker, name)
    asked = Resume(place.settings, broker, name, ResumeOptions(None, "to be sure", False, False), "ann")
    with searching(monkeypatch, []) as searched:
        assert asyncio.run(asked.open_transactions([1], commit=None)) == []
    ((_, options),) = searched
    output = place.settings.streams[name].output
    assert options["shared"] == [(output, number) for number in range(3)]
    # Nor may the decision's own transaction overlook one there: taking the id over erases how it ended.
    with tempfile.TemporaryDirectory() as folder:
        move = asked.move_of(cast("Any", None), 1, asked.state_of(1, Path(folder)))
    assert set(options["shared"]) <= set(move._producer.partitions)
