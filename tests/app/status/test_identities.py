"""The list of identities: by prefix, with a cursor, over store and map, several partitions and workers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_ratchet.app.status.identities import (
    IdentitiesAnswer,
    IdentitiesQuery,
    IdentityEntry,
    IdentityPartition,
    list_identities,
    merge_identities,
    parse_identities_query,
)
from kafka_ratchet.app.status.lookup import QueryError
from kafka_ratchet.app.status.producers import list_producers
from kafka_ratchet.rule.identity import Identity
from kafka_ratchet.rule.windows import StateOptions
from kafka_ratchet.tables.table import Sequences
from tests.app.status.test_producers import judge


@pytest.fixture
def sequences(tmp_path: Path) -> Iterator[Sequences]:
    made = Sequences(tmp_path, "changelog", Identity.PRODUCER, 1 << 20, kept=StateOptions(dense=True))
    for number in range(2):
        made.partition(number).open()
    yield made
    for number in range(2):
        made.partition(number).close()


async def test_those_of_the_store_and_newer_ones_are_listed_in_order(sequences: Sequences) -> None:
    judge(sequences, 0, *((b"a%d" % n, 5) for n in range(5)), (b"b", 1))
    sequences.partition(0).close()  # all of it is in the store now
    sequences.partition(0).open()
    judge(sequences, 0, (b"a9", 3), (b"a9", 6))
    judge(sequences, 0, (b"a7", 2), commit=False)
    judge(sequences, 1, (b"a1", 8))

    found: list[str] = []
    query = IdentitiesQuery(b"a", None, 2)
    while True:
        answer = await list_identities(sequences, [0, 1], query)
        found += [bytes.fromhex(each.identity_hex).decode() for each in answer.identities]
        if not answer.more:
            break
        query = IdentitiesQuery(b"a", bytes.fromhex(answer.identities[-1].identity_hex), 2)
    assert found == ["a0", "a1", "a2", "a3", "a4", "a7", "a9"]

    (one,) = (await list_identities(sequences, [0, 1], IdentitiesQuery(b"a1"))).identities
    assert [(row.partition, row.persisted) for row in one.partitions] == [(0, 5), (1, 8)]
    (nine,) = (await list_identities(sequences, [0, 1], IdentitiesQuery(b"a9"))).identities
    (row,) = nine.partitions
    assert (row.persisted, row.missing, row.duplicate) == (6, 2, 0)
    assert row.last_seen is not None
    (seven,) = (await list_identities(sequences, [0], IdentitiesQuery(b"a7"))).identities
    assert (seven.partitions[0].persisted, seven.partitions[0].pushed) == (None, 2)
    assert (await list_identities(sequences, [0, 1], IdentitiesQuery(b"zz"))).identities == []


async def test_pages_over_many_partitions_are_those_of_all_names_in_order(tmp_path: Path) -> None:
    """Each partition is read only as far as a page may reach; half of the names are in the stores, some in two."""
    made = Sequences(tmp_path, "changelog", Identity.PRODUCER, 1 << 20)
    choose, numbers = random.Random(3), list(range(12))
    where: dict[bytes, set[int]] = {}
    for begins in ("a", "b"):
        for number in numbers:
            made.partition(number).open()
            names = [f"{begins}{choose.randrange(400)}".encode() for _ in range(choose.randrange(12))]
            if names:
                judge(made, number, *((name, 1) for name in sorted(set(names))))
            for name in names:
                where.setdefault(name, set()).add(number)
            if begins == "a":
                made.partition(number).close()
    for limit in (1, 7, 50):
        after, found, known = None, list[tuple[bytes, set[int]]](), list[bytes]()
        while True:
            answer = await list_identities(made, numbers, IdentitiesQuery(b"", after, limit))
            page = [
                (bytes.fromhex(each.identity_hex), {row.partition for row in each.partitions})
                for each in answer.identities
            ]
            producers = list_producers(made, numbers, after, limit)
            known += [bytes.fromhex(each.name_hex) for each in producers.producers]
            found += page
            assert producers.more == answer.more
            if not answer.more:
                break
            after = page[-1][0]
        assert found == [(name, where[name]) for name in sorted(where)]
        assert known == sorted(where)
    for number in numbers:
        made.partition(number).close()


def test_the_parts_of_workers_are_put_together() -> None:
    rows = IdentityPartition(0, 1, 1), IdentityPartition(0, 2, 2), IdentityPartition(1, 9, 9)
    answers = [
        IdentitiesAnswer([IdentityEntry("61", [rows[0]]), IdentityEntry("xx", [])], False, [0]),
        IdentitiesAnswer([IdentityEntry("61", [rows[1], rows[2]]), IdentityEntry("62", [rows[2]])], False, [1], False),
    ]
    page = merge_identities("s", answers, IdentitiesQuery(limit=1), {0, 1, 2}, ["away"])
    assert [(each.identity, each.partitions) for each in page.identities] == [("a", [rows[1], rows[2]])]
    assert (page.next, page.not_asked, len(page.problems)) == ("61", [2], 3)


@pytest.mark.parametrize("asked", [{"prefix": "x"}, {"after": "6"}, {"limit": "0"}, {"prefix": "00" * 1025}])
def test_what_cannot_be_read_is_refused(asked: dict[str, str]) -> None:
    with pytest.raises(QueryError):
        parse_identities_query(asked)
