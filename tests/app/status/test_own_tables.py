"""Tables of one's own from outside: keys as people write them, pages, several workers, and what is out to harm."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import aiohttp
import msgspec
import pytest

from kafka_ratchet.app.status import table_reading
from kafka_ratchet.app.status.lookup import QueryError
from kafka_ratchet.app.status.own_tables import (
    AskedPartition,
    TableAnswer,
    TableEntry,
    TablePage,
    TableQuery,
    TableValue,
    merge_tables,
    parse_table_query,
    window_text,
)
from kafka_ratchet.app.status.server import StatusServer
from kafka_ratchet.app.status.table_reading import read_table
from kafka_ratchet.tables.values.committed import CommittedTable
from kafka_ratchet.tables.values.partition import PartitionTables
from kafka_ratchet.tables.values.table import Table
from kafka_ratchet.tables.values.table_partition import nothing, nowhere
from kafka_ratchet.tables.values.windows import WindowCodec
from tests.app.worker.known_worker import KnownWorker, partition, table

LIMIT = 1 << 20


def held(made: Table, values: dict[Any, Any]) -> CommittedTable:
    partition = PartitionTables(nowhere, nothing)
    partition.add(made.codec, made.default)
    partition.open()
    made.here.set(partition.of(made.name))
    for key, value in values.items():
        made[key] = value
    partition.encode(LIMIT)
    partition.commit()
    made["pushed"] = 0

    def scan(prefix: bytes, first: bytes) -> Generator[tuple[bytes, bytes], None, None]:
        yield from ()

    return CommittedTable(partition.of(made.name), nowhere, scan, partition.unsaved)


def asked(*parts: CommittedTable, **query: str) -> TableAnswer:
    return read_table({number: (part, 40 + number) for number, part in enumerate(parts)}, parse_table_query(query))


def rows(answer: TableAnswer | TablePage) -> list[tuple[Any, int, Any]]:
    return [(entry.key, row.partition, row.value) for entry in answer.entries for row in entry.values]


def test_a_key_is_looked_for_as_number_and_as_text_and_shown_as_json() -> None:
    part = held(Table("t"), {7: "number", "7": "text", '"7"': "quoted"})
    assert rows(asked(part, key="7")) == [(7, 0, "number"), ("7", 0, "text")]
    assert rows(asked(part, key='"7"')) == [("7", 0, "text"), ('"7"', 0, "quoted")]
    assert rows(asked(part, hex=b"7".hex())) == [(7, 0, "number")]
    assert rows(asked(part, key="pushed")) == []


def test_typed_keys_and_raw_ones() -> None:
    points = Table("points", key_type=tuple[str, int], serializer="msgpack", value_type=dict[str, int])
    partition = PartitionTables(nowhere, nothing)
    partition.add(points.codec, None)
    partition.open()
    points.here.set(partition.of("points"))
    points["a", 1] = {"x": 1}
    partition.commit()
    part = CommittedTable(partition.of("points"), nowhere, lambda prefix, first: (_ for _ in ()), partition.unsaved)
    assert rows(asked(part, key=' ["a" , 1]')) == [(["a", 1], 0, {"x": 1})]
    assert rows(asked(part)) == [(["a", 1], 0, {"x": 1})]
    with pytest.raises(QueryError, match=r"table points cannot have such a key: its keys are tuple\[str, int\]"):
        asked(part, key="a")


def test_a_key_stands_in_each_partition_that_has_it_and_pages_leave_none_out() -> None:
    made = Table("t")
    parts = [held(made, {f"k{number:02}": part for number in range(part, 30, 2)}) for part in range(2)]
    parts.append(held(made, {"k05": "again"}))
    whole = rows(asked(*parts, limit="500"))
    assert [key for key, _, _ in whole if key != "k05"] == [f"k{number:02}" for number in range(30) if number != 5]
    assert [row for row in whole if row[0] == "k05"] == [("k05", 1, 1), ("k05", 2, "again")]
    paged, after = [], dict[str, str]()
    while True:
        query = {"limit": "7", **after}
        answers = {f"w{n}": read_table({n: (part, 0)}, parse_table_query(query)) for n, part in enumerate(parts)}
        page = merge_tables("t", "s", answers, parse_table_query(query), range(4), [])
        assert page.not_asked == [3]
        paged += rows(page)
        if page.next is None:
            break
        after = {"after": page.next}
    assert paged == whole


def test_what_is_large_or_deep_is_cut_and_what_is_long_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    deep: Any = []
    for _ in range(300):
        deep = [deep]
    part = held(Table("t"), {"deep": deep, "long": "x" * 10_000, "k" * 3_000: 1, "wide": [{}] * 150})
    listed = asked(part)
    assert [(entry.key, entry.values[0].excerpt is not None) for entry in listed.entries] == [
        ("deep", True),
        ("long", True),
        ("wide", False),
    ]
    assert (listed.left_out, listed.entries[1].values[0].bytes, len(listed.entries[1].values[0].excerpt or "")) == (
        1,
        10_002,
        table_reading.LISTED_MOST,
    )
    assert rows(asked(part, key="long")) == [("long", 0, "x" * 10_000)]
    with pytest.raises(QueryError, match="the longest possible one has 2,000"):
        asked(part, key="k" * 3_000)
    monkeypatch.setattr(table_reading, "ANSWER_MOST", 1)
    assert (len(asked(part).entries), asked(part).reached) == (1, b'"deep"'.hex())


def test_long_keys_with_one_beginning_end_the_list_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_reading, "LONG_KEYS_MOST", 2)
    part = held(Table("t"), {"k" * 3_000 + str(number): 1 for number in range(9)})
    query, seen = TableQuery(limit=10), list[str]()
    for _ in range(3):
        answer = read_table({0: (part, 0)}, query)
        page = merge_tables("t", "s", {"w": answer}, query, [0], [])
        seen += page.problems
        if page.next is None:
            break
        query = query._replace(after=bytes.fromhex(page.next))
    assert "the list ends here: after it are too many keys of more than 2,000 bytes" in seen


def test_of_two_workers_the_one_that_has_committed_further_is_believed() -> None:
    def answer(value: int, position: int) -> TableAnswer:
        return TableAnswer([TableEntry("a", b'"a"'.hex(), [TableValue(0, value, 1)])], [AskedPartition(0, position)])

    page = merge_tables("t", "s", {"old": answer(1, 10), "new": answer(2, 11)}, TableQuery("a", limit=1), [0, 1], [])
    assert (rows(page), page.partitions, page.not_asked) == ([("a", 0, 2)], [AskedPartition(0, 11)], [1])


@pytest.mark.parametrize(
    "query",
    [
        {"key": "a", "hex": "61"},
        {"hex": "x"},
        {"after": "0"},
        {"limit": "501"},
        {"key": "\udcff"},
        {"after": "00" * 3_000},
    ],
)
def test_a_question_that_cannot_be_read_is_a_sentence(query: dict[str, str]) -> None:
    with pytest.raises(QueryError):
        parse_table_query(query)


async def test_over_http() -> None:
    own = [TableEntry("<b>", "3c623e", [TableValue(0, {"</td>": None}, 10)])]
    status = table(partition(0), partition(1, state="restoring"))
    known = KnownWorker([replace(status, tables=["totals"])], own=own)
    server = StatusServer(known)
    url = await server.start()
    try:
        async with aiohttp.ClientSession() as http:
            query = {"stream": "events", "table": "totals", "key": "<b>"}
            async with http.get(f"{url}/status/table", params=query) as response:
                body = msgspec.json.decode(await response.read(), type=TableAnswer)
            async with http.get(f"{url}/status/table", params={**query, "table": "none"}) as response:
                refused = response.status, await response.json()
    finally:
        await server.stop()
    assert (rows(body), [each.partition for each in body.asked]) == ([("<b>", 0, {"</td>": None})], [0])
    assert refused == (400, {"error": "stream 'events' has no table 'none' on this worker"})


def test_a_key_of_a_table_with_windows_is_shown_in_each_window_newest_last() -> None:
    made = Table("t", default=int)
    made.tumbling(60)
    part, store = PartitionTables(nowhere, nothing), dict[bytes, bytes]()
    part.add(made.codec, made.default, made.kind)
    part.open()
    assert isinstance(made.codec, WindowCodec)
    for minute, saves in ((-1, True), (0, True), (1, False)):
        for key in ("a", 7):
            part.of("t").set(made.codec.place(minute * 60_000, key), minute)
        part.commit()
        if saves:
            store |= {key: value for key, value in part.unsaved_entries() if value is not None}
            part.saved(0)

    def scan(prefix: bytes, first: bytes) -> Generator[tuple[bytes, bytes], None, None]:
        yield from ((key, value) for key, value in sorted(store.items()) if key.startswith(prefix) and key >= first)

    seen = CommittedTable(part.of("t"), store.get, scan, part.unsaved)

    def windows(**query: str) -> list[tuple[Any, Any, Any]]:
        page = merge_tables("t", "s", {"w": asked(seen, **query)}, parse_table_query(query), [0], [])
        problems.extend(page.problems)
        return [(entry.key, entry.window, entry.values[0].value) for entry in page.entries]

    problems = list[str]()
    everywhere = [("a", (-60, 0), -1), ("a", (0, 60), 0), ("a", (60, 120), 1)]
    assert windows(key="a") == everywhere
    assert windows(key="7") == [(7, *rest) for _, *rest in everywhere]
    assert (windows(key="a", limit="1"), len(problems)) == (everywhere[2:], 1)
    assert sorted(row for row in windows() if row[0] == "a") == everywhere
    assert windows(hex=asked(seen, key="a").entries[0].key_hex) == everywhere[2:]
    assert window_text((60, 120)) == "1970-01-01 00:01:00 to 00:02:00"
    assert window_text((1e300, 1e300)) == "1e+300 to 1e+300 s"
