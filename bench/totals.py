"""Input of the programs that keep totals, one order per record, and the totals that it demands."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from bench.kafka import produce
from bench.load import SEQUENCE, STRIDE, Load, begin, committed_records, filled, flush

HEAD: Final = b'{"user": "user-%d", "amount": %d, "filler": "'
AMOUNTS: Final = 97


@dataclass(frozen=True, slots=True)
class Totals:
    """Demanded output.

    orders: number of orders of each user; their amounts follow from `amount_of`.
    """

    orders: list[int]

    @property
    def fresh(self) -> int:
        """Return the number of records in the input."""
        return sum(self.orders)


class Total(msgspec.Struct):
    """Record of the output."""

    user: str
    total: int


def amount_of(user: int, number: int) -> int:
    """Return the amount of a user's order with this number; numbers begin at 1."""
    return 1 + (user * 31 + number * 7) % AMOUNTS


def fill(bootstrap: str, topic: str, load: Load) -> Totals:
    """Create the topic and send the input, keyed by user, with the number of the user's order as its sequence.

    Raises:
        BenchFailed: Kafka did not accept all records.
    """
    producer, choose, filler = begin(bootstrap, topic, load)
    orders = [0] * load.keys
    in_turn = load.keys >= load.records
    for sent in range(load.records):
        user = sent * STRIDE % load.keys if in_turn else choose.randrange(load.keys)
        orders[user] += 1
        number = orders[user]
        head = HEAD % (user, amount_of(user, number))
        value = filled(head, filler, user * 31 + number, load)
        headers = [("ratchet-sequence", SEQUENCE.pack(number))]
        produce(producer, topic, value, b"user-%d" % user, headers=headers)
        producer.poll(0)
    flush(producer, topic, load)
    return Totals(orders)


def is_right(bootstrap: str, topic: str, truth: Totals, *, every: bool) -> bool:
    """Return True if the committed output has each user's totals in order, with the last one.

    every: True if none may be missing; False if any but the last may be, as with a cache.

    Raises:
        BenchFailed: the output cannot be read to its end.
    """
    reached, sums = [0] * len(truth.orders), [0] * len(truth.orders)
    decode = msgspec.json.Decoder(Total).decode
    with closing(committed_records(bootstrap, topic)) as records:
        for message in records:
            found = decode(message.value())
            user = int(message.key()[5:])
            if found.user.encode() != message.key() or not _advance(reached, sums, user, found.total, truth, every):
                return False
    return reached == truth.orders


def _advance(reached: list[int], sums: list[int], user: int, total: int, truth: Totals, every: bool) -> bool:
    """Return True if a total is the user's next one, or with `every` unset a later one."""
    while reached[user] < truth.orders[user]:
        reached[user] += 1
        sums[user] += amount_of(user, reached[user])
        if every or sums[user] >= total:
            return sums[user] == total
    return False


EVERY: Final[Callable[[str, str, Totals], bool]] = partial(is_right, every=True)
LAST: Final[Callable[[str, str, Totals], bool]] = partial(is_right, every=False)
