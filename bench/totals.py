"""Input of the programs that keep totals, with one order per record, and the right totals for it."""

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
    """Right output.

    orders: number of orders of each user; `amount_of` returns the amount of each order
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
    """Create the topic and send the input. The key is the user, the sequence is the number of the user's order.

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
    """Return True if the committed output has each user's totals in order, up to the user's last one.

    every: True: no total may be missing; False: totals before the last may be missing, as with a cache

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
    """Return True if `total` is the user's next total; with `every` False, True for any later total too.

    reached: number of the last order in the output, by user; sums: total up to that order, by user. Both are updated.
    """
    while reached[user] < truth.orders[user]:
        reached[user] += 1
        sums[user] += amount_of(user, reached[user])
        if every or sums[user] >= total:
            return sums[user] == total
    return False


EVERY: Final[Callable[[str, str, Totals], bool]] = partial(is_right, every=True)
LAST: Final[Callable[[str, str, Totals], bool]] = partial(is_right, every=False)
