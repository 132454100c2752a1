"""Tables of one's own from outside: keys as people write them, pages, several workers, and what is out to harm."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import aiohttp
import msgspec
import pytest

from kafka_ratchet.app.status import own_tables
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
    read_table,
)
from kafka_ratchet.app.status.server import StatusServer
from kafka_ratchet.tables.values.committed import CommittedTable
from kafka_ratchet.tables.values.partition import PartitionTables, nothing, nowhere
from kafka_ratchet.tables.values.table import Table
from tests.app.worker.known_worker import KnownWorker, partition, table

LIMIT = 1 << 20


def held(made: Table, values: dict[Any, Any]) -> CommittedTable:
    partition = PartitionTables(nowhere, nothing)
    partition.add(made.codec, made.default)
    made.here.set(partition.of(made.name))
    for key, value in values.items():
        made[key] = value
    partition.encode(LIMIT)
    partition.commit()
    made["pushed"] = 0

    def scan(prefix: bytes, after: bytes | None = None) -> Generator[tuple[bytes, bytes], None, None]:
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
    points.here.set(partition.of("points"))
    points["a", 1] = {"x": 1}
    partition.commit()
    part = CommittedTable(
        partition.of("points"), nowhere, lambda prefix, after=None: (_ for _ in ()), partition.unsaved
    )
    assert rows(asked(part, key=' ["a" , 1]')) == [(["a", 1], 0, {"x": 1})]
    assert rows(asked(part)) == [(["a", 1], 0, {"x": 1})]
    with pytest.raises(QueryError, match=r"no key of table points is written so: its keys are tuple\[str, int\]"):
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
        own_tables.LISTED_MOST,
    )
    assert rows(asked(part, key="long")) == [("long", 0, "x" * 10_000)]
    with pytest.raises(QueryError, match="the longest one that can be asked for has 2,000"):
        asked(part, key="k" * 3_000)
    monkeypatch.setattr(own_tables, "ANSWER_MOST", 1)
    assert (len(asked(part).entries), asked(part).reached) == (1, b'"deep"'.hex())


def test_long_keys_with_one_beginning_end_the_list_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_tables, "LONG_KEYS_MOST", 2)
    part = held(Table("t"), {"k" * 3_000 + str(number): 1 for number in range(9)})
    query, seen = TableQuery(limit=10), list[str]()
    for _ in range(3):
        answer = read_table({0: (part, 0)}, query)
        page = merge_tables("t", "s", {"w": answer}, query, [0], [])
        seen += page.problems
        if page.next is None:
            break
        query = query._replace(after=bytes.fromhex(page.next))
    assert "the list ends here: behind it are too many keys of more than 2,000 bytes" in seen


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
    assert refused == (400, {"error": "stream 'events' has no table 'none' here"})
