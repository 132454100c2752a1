"""Field-by-field reader of Kafka's answers, for long or very frequent ones.

aiokafka reads by schemas, a Python call for each field of each partition.
"""

from __future__ import annotations

import struct
from typing import Any

from aiokafka.errors import KafkaError


class UnreadableResponse(KafkaError):  # type: ignore[misc]  # aiokafka has no types
    """Error for a response of Kafka that ends before its last field."""


class Reader:
    """Reader of a Kafka response in compact encoding (KIP-482); each call advances its position.

    Raises:
        UnreadableResponse: from every method, if the response ends too early.
    """

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data, self._at = data, at

    def take(self, form: struct.Struct) -> tuple[Any, ...]:
        """Read fields of fixed sizes. form: their struct format."""
        try:
            found = form.unpack_from(self._data, self._at)
        except struct.error as error:
            raise UnreadableResponse(str(error)) from None
        self._at += form.size
        return found

    def number(self) -> int:
        """Read an unsigned integer of variable length."""
        found = shift = 0
        try:
            while (byte := self._data[self._at]) & 0x80:
                found |= (byte & 0x7F) << shift
                shift += 7
                self._at += 1
        except IndexError:
            raise UnreadableResponse("Kafka's answer ends within a number") from None
        self._at += 1
        return found | byte << shift

    def length(self) -> int:
        """Read the length of the array or bytes that follow; a null one has length 0."""
        return max(0, self.number() - 1)

    def take_bytes(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        begin = self._at
        self.skip(size)
        return self._data[begin : self._at]

    def text(self) -> str:
        """Read a text in UTF-8; null becomes ""."""
        return self.take_bytes(self.length()).decode()

    def skip(self, size: int) -> None:
        """Skip `size` bytes."""
        self._at += size
        if self._at > len(self._data):
            raise UnreadableResponse("Kafka's answer ends within a field")

    def skip_text(self) -> None:
        """Skip a text or a byte string."""
        self.skip(self.length())

    def tags(self) -> dict[int, bytes]:
        """Read the tagged fields, as bytes by tag number."""
        return {self.number(): self.take_bytes(self.number()) for _ in range(self.number())}

    def skip_tags(self) -> None:
        """Skip the tagged fields."""
        for _ in range(self.number()):
            self.number()
            self.skip(self.number())
