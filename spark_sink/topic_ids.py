"""Topic ids of Kafka (KIP-516), as numbers for stores and as text for users.

In code an id is an integer of 128 bits, and 0 stands for "not known". Tables of earlier versions contain only 63 of the
id's bits.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

HALF = 2**64 - 1
POSITIVE_63_BITS = 2**63 - 1
"""Mask of the bits that fit into a store's signed 64-bit integer."""


def of_halves(high: int, low: int) -> int:
    """Return the id made of two halves of 64 bits, given as signed numbers."""
    return (high & HALF) << 64 | low & HALF


def text(topic_id: int) -> str:
    """Return the id as Kafka's own tools print it; "": unknown."""
    if not topic_id:
        return ""
    return base64.urlsafe_b64encode(topic_id.to_bytes(16)).decode("ascii").rstrip("=")


def first_bits(topic_id: int) -> int:
    """Return the 63 bits that earlier versions have stored."""
    return (topic_id >> 64) & POSITIVE_63_BITS


def parts(topic_id: int) -> tuple[int, int, int]:
    """Split an id into three nonnegative numbers: 63 bits of each half, and the remaining two bits."""
    high, low = topic_id >> 64, topic_id & HALF
    return high & POSITIVE_63_BITS, low & POSITIVE_63_BITS, (high >> 63) * 2 + (low >> 63)


def of_parts(high: int, low: int, rest: int) -> int:
    """Join the three numbers that the function `parts` returns into an id."""
    return (high | (rest >> 1) << 63) << 64 | low | (rest & 1) << 63


@dataclass(frozen=True)
class StoredTopicId:
    """Stored id of the topic that a table's offsets belong to; earlier versions stored a part of it."""

    text: str = ""
    """Id as the function `text` returns it; empty: an earlier version wrote the table, or the broker gave no id."""
    first_bits: int = 0

    def is_other(self, topic_id: int) -> bool:
        """Return True if an id certainly belongs to another topic; False if either id is unknown."""
        if not topic_id:
            return False
        if self.text:
            return self.text != text(topic_id)
        return bool(self.first_bits) and self.first_bits != first_bits(topic_id)

    def __str__(self) -> str:
        return self.text or (f"(its first half) {self.first_bits:016x}" if self.first_bits else "not known")
