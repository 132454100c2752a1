"""A partition that is replayed: who gets which record, and what becomes of outputs, letters and tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kafka_ratchet import App
from kafka_ratchet.app.verify import RecordView, Report
from kafka_ratchet.app.verify.legs import Leg
from kafka_ratchet.app.verify.replay.outputs import Output
from kafka_ratchet.app.verify.replay.partition import ReplayedPartition, batch_of, spec_of, views
from kafka_ratchet.app.verify.replay.tables import ReplayTables, merged
from kafka_ratchet.app.verify.rule import Rule
from kafka_ratchet.rule.identity import Identity, SequenceSource
from kafka_ratchet.tables.policy_intervals import PolicyInterval
from kafka_ratchet.tables.totals import Progress
from kafka_ratchet.tables.values.view import close_views
from kafka_ratchet.transport.sent_topics import SentTopic

Rows = list[RecordView]


def row(sequence: int | None, value: Any, user: str = "ann") -> RecordView:
    headers: list[tuple[str, bytes | None]] = [("ratchet-producer", b"shop"), ("trace", None)]
    if sequence is not None:
        headers.append(("ratchet-sequence", b"%d" % sequence))
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return RecordView(user.encode(), data, headers, 1_700_000_000_000 + (sequence or 0))


FORMS = b't\x00"form '


class Shop:
    """Totals by key, on one partition. What is more than 1000 is told to others."""

    def __init__(self, folder: Path, on_error: Any = "halt", times: int = 1) -> None:
        self.app = App()
        orders = self.app.stream("orders", value_type=int)
        totals = self.app.Table("totals", default=int)
        self.seen = self.app.Table("seen", value_type=set[str])
        alerts = self.app.topic("alerts")

        @self.app.agent(orders, on_error=on_error)
        async def add_up(orders: Any) -> Any:
            async for event in orders.events():
                totals[event.key.decode()] += event.value * times
                self.seen["all"] = {*self.seen.get("all", ()), event.key.decode()}
                if event.value < 0:
                    raise ValueError("negative")
                if event.value > 1000:
                    await alerts.send(key=event.key, value=[event.producer, event.sequence])
                if event.value == 0:
                    del totals[event.key.decode()]
                if event.value == 7:
                    yield event
                yield totals[event.key.decode()]

        self.report = Report("orders")
        self.sent: list[tuple[str, int, bytes | None, bytes | None, int | None, bool]] = []
        self.kept = ReplayTables(folder / "store", self.app.tables_of("orders"), 0)
        self.partition = self.replayed({})

    def replayed(self, last: dict[bytes, int], unjudged: tuple[PolicyInterval, ...] = ()) -> ReplayedPartition:
        spec = spec_of(("in", "out", "dead"), 0, Identity.PRODUCER, {"alerts": SentTopic(4, 1 << 20)})
        rule = Rule(Identity.PRODUCER, SequenceSource.parse("header:ratchet-sequence"))
        tables = self.app.tables_of("orders")
        return ReplayedPartition(
            spec, rule, self.app.of("orders"), tables, self.kept, last, unjudged, self.report, self.take
        )

    def take(self, topic: str, partition: int, record: RecordView, offset: int | None, is_due: bool) -> None:
        self.sent.append((topic, partition, record.key, record.value, offset, is_due))

    def run(
        self,
        rows: Rows,
        legs: list[Leg] | None = None,
        judged: int = 10**9,
        cut: int | None = None,
        at_cut: Callable[[], None] = lambda: None,
    ) -> list[Output]:
        def read(start: int, end: int) -> Iterator[tuple[int, RecordView]]:
            return ((offset, rows[offset]) for offset in range(start, min(end, len(rows))))

        legs = legs or [Leg(0, len(rows))]
        return list(self.partition.outputs(read, legs, judged, cut, at_cut))

    def entries(self) -> dict[bytes, bytes]:
        """Return the tables' entries as the changelog has them, without the form of their writing."""
        self.kept.keep_state()
        return {key: value for key, value in self.kept.state() if not key.startswith(FORMS)}


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    shop.kept.close()


def test_timestamps_are_those_of_the_records() -> None:
    stamps = [-1, -60_000, -62_135_596_800_000, -1, 5]
    rows = [replace(row(number, 1), timestamp_ms=stamp) for number, stamp in enumerate(stamps)]
    batch = batch_of(spec_of(("in", "out", "dead"), 0, Identity.PRODUCER, {}), list(enumerate(rows, 7)))
    assert batch.timestamps.tolist() == stamps
    assert batch.offsets.tolist() == [7, 8, 9, 10, 11]
    assert [view.timestamp_ms for view in views(batch)] == stamps


def values(outputs: list[Output]) -> list[Any]:
    return [json.loads(each.value or b"null") for each in outputs]


def test_only_what_the_rule_of_verify_calls_fresh_reaches_the_program(shop: Shop) -> None:
    outputs = shop.run([row(1, 5), row(1, 5), row(None, 9), row(2, 7), row(0, 3)])
    assert [(each.value, each.offset) for each in outputs] == [(b"5", 0), (b"7", 3), (b"12", 3)]
    assert (shop.report.fresh, shop.report.duplicate, shop.report.invalid) == (2, 2, 1)
    assert list(shop.partition.letters) == [2]
    assert shop.entries() == {b't\x06totals"ann"': b"12", b't\x04seen"all"': b'["ann"]'}


def test_an_event_that_is_yielded_goes_on_byte_for_byte(shop: Shop) -> None:
    rows = [row(1, 7)]
    assert shop.run(rows)[0].digest == Output.of(rows[0], 0).digest


def test_what_went_by_unjudged_reaches_it_as_well(shop: Shop) -> None:
    shop.partition = shop.replayed({}, (PolicyInterval(0, False, 1, 3, 1, 2),))
    assert values(shop.run([row(1, 5), row(1, 5), row(None, 1), row(1, 5), row(2, 1)])) == [5, 10, 11, 12]
    assert shop.report.unjudged == 2


def test_a_leg_that_was_read_again_after_last_sequences_were_forgotten(shop: Shop) -> None:
    rows = [row(1, 5), row(2, 6), row(3, 1)]
    assert values(shop.run(rows, [Leg(0, 2), Leg(1, 3, True)])) == [5, 11, 17, 18]


def test_who_fails_where_workers_went_on_is_told_from_who_halts_as_they_do(shop: Shop) -> None:
    rows = [row(1, 5), row(2, -1), row(3, 1)]
    assert values(shop.run(rows, judged=1)) == [5]
    assert "in, partition 0, offset 1: agent add_up raised ValueError: negative" in (shop.partition.failure or "")
    assert not shop.partition.failed_early
    shop.partition = shop.replayed({})
    assert shop.run(rows, judged=3) == []
    assert shop.partition.failed_early


def test_a_record_that_raises_is_a_dead_letter_where_that_is_asked_for(tmp_path: Path) -> None:
    shop = Shop(tmp_path, "dead-letter")
    assert values(shop.run([row(1, 5), row(2, -1), row(3, b"?"), row(4, 1)])) == [5, 6]
    assert (list(shop.partition.letters), dict(shop.partition.times)) == ([1, 2], {1: 1, 2: 1})
    shop.kept.close()


def test_what_is_sent_is_handed_over_with_its_partition_and_knows_its_sequence(shop: Shop) -> None:
    shop.partition = shop.replayed({}, (PolicyInterval(0, False, 1, 2, 1, 1),))
    shop.run([row(1, 2000), row(2, 3000), row(3, 4000, "bob")], judged=2)
    assert shop.sent == [
        ("alerts", 2, b"ann", b'["shop",1]', 0, True),
        ("alerts", 2, b"ann", b"[null,null]", 1, True),
        ("alerts", 2, b"bob", b'["shop",3]', 2, False),
    ]


def test_windows_expire_as_they_do_in_a_worker(tmp_path: Path) -> None:
    app = App()
    clicks = app.stream("clicks")
    counts = app.Table("counts", default=int).tumbling(10, expires=20)

    @app.agent(clicks)
    async def count(clicks: Any) -> None:
        async for click in clicks:
            counts[click] += 1

    kept = ReplayTables(tmp_path / "store", app.tables_of("clicks"), 0)
    rule = Rule(Identity.PRODUCER, SequenceSource.parse("header:ratchet-sequence"))
    spec, report = spec_of(("in", "out", "dead"), 0, Identity.PRODUCER, {}), Report("clicks")
    partition = ReplayedPartition(
        spec, rule, app.of("clicks"), app.tables_of("clicks"), kept, {}, (), report, lambda *_: None
    )
    times = [1_000, 2_000, 15_000, 60_000, 3_000]
    rows = [replace(row(number, "a"), timestamp_ms=time) for number, time in enumerate(times)]
    read = lambda start, end: ((offset, rows[offset]) for offset in range(start, min(end, 5)))  # noqa: E731
    assert list(partition.outputs(read, [Leg(0, 5)], 5, 5, kept.keep_state)) == []
    after = {key: value for key, value in kept.state() if not key.startswith(FORMS)}
    assert [value for key, value in after.items() if key.startswith(b"t\x06counts")] == [b"1"]
    assert after[b't\x00"time"'] == b"60000"
    kept.read_changelog(written(after | {b't\x00"shape counts"': b'"values with bytes"'}), [])
    assert (kept.compare("log", 0, report), report.findings) == ((len(after), {}), [])
    kept.close()


def test_timestamps_that_depend_on_the_batch_are_no_part_of_an_output(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    app = App()
    clicks = app.stream("clicks")

    @app.agent(clicks)
    async def doubled(clicks: Any) -> Any:
        async for batch in clicks.batches(["key", "value"]):
            yield pyarrow.record_batch({"key": batch["key"], "value": batch["value"]})

    kept = ReplayTables(tmp_path / "store", [], 0)
    rule = Rule(Identity.PRODUCER, SequenceSource.parse("header:ratchet-sequence"))
    spec, report = spec_of(("in", "out", "dead"), 0, Identity.PRODUCER, {}), Report("clicks")
    partition = ReplayedPartition(spec, rule, app.of("clicks"), [], kept, {}, (), report, lambda *_: None)
    rows = [row(1, "a"), row(2, "b")]
    (first, second) = partition.outputs(lambda start, end: enumerate(rows), [Leg(0, 2)], 2, None, lambda: None)
    assert partition.reads_batches
    assert (first.value, second.value) == (b'"a"', b'"b"')
    other = RecordView(b"ann", b'"a"', [], 5)
    assert first.digest == Output.of(other, None, has_time=False).digest != Output.of(other, None).digest
    kept.close()


@pytest.mark.parametrize("is_view", [False, True])
def test_a_look_up_in_what_others_move_ends_the_replay(tmp_path: Path, is_view: bool) -> None:
    app = App()
    clicks, orders = app.stream("clicks"), app.stream("orders")
    users, moved = app.Table("users", stream=orders), app.GlobalTable("names")
    moved.problem = problem = "table names: is moved by others"
    names: Any = moved
    if is_view:
        names, problem = users.view(), close_views(users)

    @app.agent(clicks, on_error="dead-letter")
    async def named(clicks: Any) -> Any:
        async for click in clicks:
            yield click if click == "a" else names[click]

    kept = ReplayTables(tmp_path / "store", [], 0)
    rule = Rule(Identity.PRODUCER, SequenceSource.parse("header:ratchet-sequence"))
    spec, report = spec_of(("in", "out", "dead"), 0, Identity.PRODUCER, {}), Report("clicks")
    partition = ReplayedPartition(spec, rule, app.of("clicks"), [], kept, {}, (), report, lambda *_: None)
    rows = [row(1, "a"), row(2, "b")]
    assert list(partition.outputs(lambda start, end: enumerate(rows), [Leg(0, 2)], 2, None, lambda: None)) == []
    assert partition.failure == problem
    kept.close()


def test_outputs_know_what_had_to_be_there(shop: Shop) -> None:
    seen: list[dict[bytes, bytes]] = []
    rows = [row(sequence, 1) for sequence in range(6)]
    outputs = shop.run(rows, judged=4, cut=2, at_cut=lambda: seen.append(shop.entries()))
    assert [each.is_due for each in outputs] == [True] * 4 + [False] * 2
    assert [each.is_saved for each in outputs] == [True] * 2 + [False] * 4
    assert [each[b't\x06totals"ann"'] for each in seen] == [b"2"]


def written(entries: Mapping[bytes, bytes | None], position: int = 3) -> list[tuple[int, RecordView]]:
    progress = RecordView(b"p", Progress(position, 0, 0, 0).pack(), [], 0)
    rows = [RecordView(key, value, [], 0) for key, value in entries.items()]
    return [*enumerate(rows, 40), (99, progress)]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        # Another order of the same set.
        ({b't\x04seen"all"': b'["bob","ann"]'}, []),
        (
            {b't\x06totals"bob"': b"1000"},
            [
                "altered: topic log, partition 0 offset 41, table totals key 'bob': '8' in the replay, "
                "'1000' in the changelog"
            ],
        ),
        (
            {b't\x06totals"ann"': None},
            ["lost: topic log, partition 0: table totals key 'ann': '5' in the replay, nothing in the changelog"],
        ),
        (
            {b't\x06totals"eve"': b"1"},
            [
                "unexpected: topic log, partition 0 offset 43, table totals key 'eve': nothing in the replay, "
                "'1' in the changelog"
            ],
        ),
        ({b't\x06totals"eve"': None}, []),
    ],
)
def test_tables_are_compared_entry_by_entry(
    shop: Shop, changes: dict[bytes, bytes | None], expected: list[str]
) -> None:
    there: dict[bytes, bytes | None] = {
        b't\x06totals"ann"': b"5",
        b't\x06totals"bob"': b"8",
        b't\x04seen"all"': b'["ann","bob"]',
    }
    shop.run([row(1, 5), row(2, 8, "bob"), row(3, 1, "eve"), row(4, 0, "eve")])
    shop.kept.partition.commit()
    there = there | changes
    there[b't\x04seen"all"'] = there[b't\x04seen"all"'].replace(b"]", b',"eve"]')  # type: ignore[union-attr]
    shop.kept.read_changelog(written(there), [])
    assert shop.kept.position == 3
    entries, unknown = shop.kept.compare("log", 0, shop.report)
    assert [str(finding) for finding in shop.report.findings] == expected
    assert (entries, unknown) == (3 + (there.get(b't\x06totals"eve"') is not None), {})


@pytest.mark.parametrize("cut", [2, 3, 4])
def test_a_table_of_a_later_version_begins_where_workers_began_it(shop: Shop, cut: int) -> None:
    rows = [row(1, 5), row(2, 8, "bob"), row(3, 1), row(4, 2)]
    there: dict[bytes, bytes | None] = {
        b't\x06totals"ann"': b"%d" % {2: 0, 3: 1, 4: 3}[cut],
        b't\x04seen"all"': b'["ann","bob"]',
        b't\x00"begin totals"': b"2",
        b't\x00"begin gone"': b"1",
    }
    if cut == 2:
        del there[b't\x06totals"ann"']
    shop.kept.read_changelog(written(there), [])
    assert shop.kept.begins == {"totals": 2}
    found: list[Any] = []
    outputs = shop.run(rows, cut=cut, at_cut=lambda: found.append(shop.kept.compare("log", 0, shop.report)))
    assert values(outputs) == [5, 8, 1, 3]
    assert [str(finding) for finding in shop.report.findings] == []
    assert found == [(2 if cut > 2 else 1, {})]


def test_windows_of_a_later_version_begin_without_a_time(tmp_path: Path) -> None:
    app = App()
    counts = app.Table("counts", default=int).tumbling(10, expires=20)

    @app.agent(app.stream("clicks"))
    async def count(clicks: Any) -> Any:
        async for _ in clicks:
            counts["all"] += 1

    kept = ReplayTables(tmp_path / "store", app.tables_of("clicks"), 0)
    rule = Rule(Identity.PRODUCER, SequenceSource.parse("header:ratchet-sequence"))
    spec, report = spec_of(("in", "out", "dead"), 0, Identity.PRODUCER, {}), Report("clicks")
    kept.read_changelog(written({b't\x00"begin counts"': b"2"}), [])
    partition = ReplayedPartition(
        spec, rule, app.of("clicks"), app.tables_of("clicks"), kept, {}, (), report, lambda *_: None
    )
    rows = [replace(row(number, "a"), timestamp_ms=time) for number, time in enumerate([60_000, 1_000, 1_500, 2_000])]
    read = lambda start, end: ((offset, rows[offset]) for offset in range(start, min(end, 4)))  # noqa: E731
    assert list(partition.outputs(read, [Leg(0, 4)], 4, 4, kept.keep_state)) == []
    after = dict(kept.state())
    assert [value for key, value in after.items() if key.startswith(b"t\x06counts")] == [b"2"]
    assert after[b't\x00"time"'] == b"2000"
    assert b't\x00"late counts"' not in after
    kept.close()


def test_a_table_that_the_program_does_not_have_is_named_and_a_key_that_moved_on_is_pending(shop: Shop) -> None:
    shop.run([row(1, 5)])
    entries: dict[bytes, bytes | None] = {
        b't\x03old"x"': b"1",
        b't\x06totals"ann"': b"6",
        b't\x04seen"all"': b'["ann"]',
    }
    shop.kept.read_changelog(written(entries), written({b't\x06totals"ann"': b"7"}))
    assert shop.kept.compare("log", 0, shop.report) == (1, {"'old'": 1})
    assert (shop.report.ok, shop.report.pending) == (True, 1)


def test_merged() -> None:
    mine, theirs = [(b"a", b"1"), (b"c", b"3")], [(b"b", b"2"), (b"c", b"4"), (b"d", b"5")]
    assert list(merged(iter(mine), iter(theirs))) == [
        (b"a", b"1", None),
        (b"b", None, b"2"),
        (b"c", b"3", b"4"),
        (b"d", None, b"5"),
    ]
