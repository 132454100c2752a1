"""Input of the programs that deduplicate by ids instead of sequences: the record's key is an id of 16 bytes."""

from __future__ import annotations

import hashlib
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import numpy as np

from bench.kafka import produce
from bench.load import RECENT, Load, begin, committed_records, filled, flush

HEAD: Final = b'{"number": %010d, "filler": "'
NUMBER_AT: Final = slice(11, 21)
"""Position of the event's number in a value. To read it there is quicker than a JSON parser."""
ID_BYTES: Final = 16
REMEMBERED_S: Final = 7 * 24 * 3600
"""Seconds until a program may forget an id."""


@dataclass(frozen=True, slots=True)
class Ids:
    """Output that the programs must write: each number below `fresh` once."""

    fresh: int


def id_of(number: int) -> bytes:
    """Return the id of an event by its number: 16 bytes like those of a random UUID."""
    return hashlib.blake2b(number.to_bytes(8, "big"), digest_size=ID_BYTES).digest()


def fill(bootstrap: str, topic: str, load: Load) -> Ids:
    """Create the topic and send the input; every fifth record repeats one of the last thousand.

    Raises:
        BenchFailed: Kafka did not accept all records.
    """
    producer, choose, filler = begin(bootstrap, topic, load)
    fresh = 0
    for sent in range(load.records):
        if sent % 5 == 4:
            number = choose.randrange(max(0, fresh - RECENT), fresh)
        else:
            number, fresh = fresh, fresh + 1
        produce(producer, topic, filled(HEAD % number, filler, number * 31, load), id_of(number), headers=[])
        producer.poll(0)
    flush(producer, topic, load)
    return Ids(fresh)


def is_right(bootstrap: str, topic: str, truth: Ids) -> bool:
    """Return True if the output has exactly one committed record for each event, with the event's id as key.

    Raises:
        BenchFailed: the output cannot be read to its end.
    """
    times = np.zeros(truth.fresh, np.uint8)
    with closing(committed_records(bootstrap, topic)) as records:
        for message in records:
            number = int(message.value()[NUMBER_AT])
            if number >= truth.fresh or times[number] or message.key() != id_of(number):
                return False
            times[number] = 1
    return bool(times.all())
