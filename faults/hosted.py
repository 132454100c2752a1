"""Count at the end of a run with a hosted Faust program: its topics are compared with the sent events."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from confluent_kafka import Message

from faults.count import Difference, SequencesByIdentity, compare, fresh, messages
from faults.events import IDENTITIES, Event
from faults.programs.hosted import APP, EXPIRES, REMAINDERS, SIZE, words_of
from kafka_ratchet.errors import FaultRunFailed

KINDS: Final = (*IDENTITIES, "all")
"""Kinds of streams that the program reads; the last one deduplicates nothing."""
TABLES: Final = ("counts", "remainders", "balance", "windows")

Window = tuple[int, str, int]
"""A window: (partition, key, first sequence); partition 0 if only the key matters."""
Row = tuple[int, str, Any]
"""An entry of a table: (partition, key, value)."""
Entries = Counter[tuple[str, str, str]]
"""Number of each entry: (table, key, value), as JSON. An entry found in two partitions counts twice."""


class HostedResults(NamedTuple):
    """Outputs and tables of the program, as read from Kafka.

    Attributes:
        counted: partition, word and count of each record
        closed: partition, key, and (start, total) of each closed window
        log: partition, key and value of each write to the shared table
        entries: entries of all tables
    """

    counted: list[Row]
    closed: list[Row]
    log: list[Row]
    entries: Entries


def count_hosted(bootstrap: str, topics: Iterable[str], sent: list[Event]) -> Difference:
    """Return the errors of the program's outputs and tables.

    Args:
        bootstrap: host:port[,host:port]
        topics: names of all topics
        sent: events, in the order sent

    Raises:
        FaultRunFailed: a topic cannot be read, or an event became a dead letter.
    """
    names = [*topics]
    for topic in (name for name in names if name.endswith((".dead", "-dead-letters"))):
        if (letter := next(messages(bootstrap, topic), None)) is not None:
            raise FaultRunFailed(f"{topic}: has a dead letter with {letter.headers()}")
    changelogs = [name for name in names if name.startswith(f"{APP}-changelog.")]
    counted, closed, log = ([*_rows(bootstrap, f"{APP}.{name}")] for name in ("counted", "closed", "balance-log"))
    entries = Entries(entry for topic in changelogs for entry in _entries(messages(bootstrap, topic)))
    return compare_hosted(sent, HostedResults(counted, closed, log, entries))


def compare_hosted(sent: list[Event], found: HostedResults) -> Difference:
    """Return the errors of the program's outputs and tables, compared with the sent events."""
    closed, still_open = _windows(sent)
    wanted = _tables(sent, still_open)
    wrong = {entry[:2] for entry in [*(wanted - found.entries), *(found.entries - wanted)]}
    words = Counter(word for event in sent for word in words_of(event))
    counted = compare(
        {(0, word): list(range(1, total + 1)) for word, total in words.items()},
        _by_key((0, key, value) for _, key, value in found.counted),
    )
    in_tables = Difference(table_wrong=len(wrong))
    return counted + in_tables + _compare_closed(closed, found.closed) + _compare_log(sent, found.log, wanted)


def _rows(bootstrap: str, topic: str) -> Iterator[Row]:
    """Yield partition, key and value of each record in a topic."""
    for message in messages(bootstrap, topic):
        key = message.key().decode()
        # Keys of topics are text, and those of tables JSON.
        yield message.partition(), json.loads(key) if key.startswith('"') else key, json.loads(message.value())


def _by_key(rows: Iterable[tuple[int, str, int]]) -> SequencesByIdentity:
    found: SequencesByIdentity = defaultdict(list)
    for partition, key, value in rows:
        found[partition, key].append(value)
    return found


def _entries(records: Iterable[Message]) -> Iterator[tuple[str, str, str]]:
    """Yield the entries of the program's tables in a changelog: the last value of each key by partition."""
    found: dict[tuple[int, bytes], bytes] = {}
    for message in records:
        if (key := message.key()) is not None:
            found.pop((message.partition(), key), None)
            if message.value() is not None:
                found[message.partition(), key] = message.value()
    prefixes = {b"t" + bytes([len(name)]) + name.encode(): name for name in TABLES}
    for (_, key), value in found.items():
        for prefix, name in prefixes.items():
            if key.startswith(prefix):
                yield entry_of(name, json.loads(key[len(prefix) :]), json.loads(value))


def entry_of(table: str, key: Any, value: Any) -> tuple[str, str, str]:
    """Return a table's entry in one form for comparison. Sets become sorted lists."""
    return table, json.dumps(key), json.dumps(sorted(value) if isinstance(value, list) else value)


def _tables(sent: list[Event], still_open: Counter[Window]) -> Entries:
    """Return the table entries expected for the sent events."""
    words = Counter(word for event in sent for word in words_of(event))
    found = Entries(entry_of("counts", word, total) for word, total in words.items())
    sets: dict[str, set[int]] = defaultdict(set)
    for event in fresh(sent, "partition"):
        sets[event.key].add(event.sequence % REMAINDERS)
        sets[event.key].discard(event.sequence // REMAINDERS % REMAINDERS)
    found.update(entry_of("remainders", key, [*elements]) for key, elements in sets.items())
    balance = Counter[str]()
    for event in fresh(sent, "key"):
        balance[event.key] += event.sequence
    balance.subtract(event.key for event in fresh(sent, "producer"))
    found.update(entry_of("balance", key, value) for key, value in balance.items())
    found.update(
        # Faust's windows end a tenth before the next one begins.
        entry_of("windows", [key, [float(start), start + SIZE - 0.1]], total)
        for (_, key, start), total in still_open.items()
    )
    return found


def _windows(sent: list[Event]) -> tuple[Counter[Window], Counter[Window]]:
    """Return the numbers of events in closed windows and in open ones, by partition, key and start.

    A window closes when its partition has an event `EXPIRES` sequences after the window's end. Closed windows have
    partition 0.
    """
    found, time = Counter[Window](), Counter[int]()
    for event in fresh(sent, "key"):
        found[event.partition, event.key, event.sequence // SIZE * SIZE] += 1
        time[event.partition] = max(time[event.partition], event.sequence)

    def is_closed(partition: int, start: int) -> bool:
        return start + SIZE <= (time[partition] - EXPIRES) // SIZE * SIZE

    closed = Counter({place: total for place, total in found.items() if is_closed(place[0], place[2])})
    return Counter({(0, key, start): total for (_, key, start), total in closed.items()}), found - closed


def _compare_closed(wanted: Counter[Window], rows: list[Row]) -> Difference:
    """Compare closed windows with the records about them in the output.

    Each window needs one record, in order, and the record has to count all of the window's events.
    """
    order = compare(_by_key(sorted(wanted)), _by_key((0, key, int(start)) for _, key, (start, _) in rows))
    kept = Counter[Window]()
    for _, key, (start, total) in rows:
        kept[0, key, int(start)] = total  # a second record is in `order`
    shared = wanted.keys() & kept.keys()
    return order + Difference(
        lost=sum(max(0, wanted[place] - kept[place]) for place in shared),
        doubled=sum(max(0, kept[place] - wanted[place]) for place in shared),
    )


def _compare_log(sent: list[Event], rows: list[Row], wanted: Entries) -> Difference:
    """Compare the shared table with its changelog: one record for each write, and the last one equals the entry."""
    writes = Counter((event.partition, event.key) for kind in ("key", "producer") for event in fresh(sent, kind))
    found = Counter((partition, key) for partition, key, _ in rows)
    last = {key: value for _, key, value in rows}
    wrong = sum(wanted[entry_of("balance", key, value)] != 1 for key, value in last.items())
    return Difference(lost=(writes - found).total(), doubled=(found - writes).total(), table_wrong=wrong)
