"""The rule of design and docs/reference/headers.md, read slowly: what tables must say, without any of its code."""

from __future__ import annotations

import json
import re

from tests.tables.fetched_records import Sent


class PlainJudge:
    """Two dictionaries, as in PIP-6, and one record after the other."""

    def __init__(self, by: str | list[str], form: str = "guess", *, numbered: bool = True) -> None:
        """numbered: False where there are no sequences: an identity is seen or not."""
        self.by, self.form, self.numbered = by, form, numbered
        self.jumps: list[tuple[int, int]] = []
        """(last, sequence) of those that jumped; the last is -1 where it is the identity's first."""
        self.pushed: dict[bytes, int] = {}
        self.persisted: dict[bytes, int] = {}

    def judge(self, record: Sent) -> tuple[str, str]:
        sequence: int | str = 0
        if self.numbered:
            sequence = sequence_of([value for name, value in record.headers if name == "ratchet-sequence"], self.form)
        if isinstance(sequence, str):
            return "invalid", sequence
        identity = self.identity_of(record)
        if isinstance(identity, str):
            return "invalid", identity
        last = self.pushed.get(identity, -1)
        if sequence <= last:
            return "duplicate", ""
        if last < 0:
            is_jump = sequence > 2**61
        else:
            next_file = (sequence >> 40) - (last >> 40) <= 1024 and sequence & (2**40 - 1) <= 2**32
            is_jump = sequence - last > 2**40 and not next_file
        if is_jump:
            self.jumps.append((last, sequence))
        self.pushed[identity] = sequence
        return "fresh", ""

    def identity_of(self, record: Sent) -> bytes | str:
        if isinstance(self.by, str):
            return part_of(self.by, record)
        whole = b""
        for part in self.by:
            found = part_of(part, record)
            if isinstance(found, str):
                return found
            whole += bytes([len(found)]) if len(found) < 128 else bytes([len(found) % 128 | 128, len(found) // 128])
            whole += found
        return whole if len(whole) <= 1024 else "identity-too-long"

    def changed(self) -> dict[bytes, int]:
        return {name: last for name, last in self.pushed.items() if last != self.persisted.get(name)}

    def commit(self) -> None:
        self.persisted = dict(self.pushed)

    def rollback(self) -> None:
        self.pushed = dict(self.persisted)


def part_of(by: str, record: Sent) -> bytes | str:
    if by == "partition":
        return b""
    kind, _, place = by.partition(":")
    found: object = record.key
    if by == "producer" or kind == "header":
        values = [value for name, value in record.headers if name == (place or "ratchet-producer")]
        if len(values) > 1:
            return "identity-repeated"
        found = (values[0] if values else None) or None  # an empty name is none; an empty key is one
    elif kind == "field":
        try:
            found = None if record.value is None else json.loads(record.value)
        except ValueError:
            registry = re.match(rb"\0....[ \t\r\n]*[{\[]", record.value or b"", re.DOTALL)
            return "value-schema-registry" if registry else "value-not-json"
        found = found.get(place) if isinstance(found, dict) else None
        if found is not None and type(found) not in (str, int):
            return "identity-not-text"
        found = None if found is None or found == "" else str(found).encode()
    if not isinstance(found, bytes):
        return "identity-missing"
    return found if len(found) <= 1024 else "identity-too-long"


def sequence_of(values: list[bytes | None], form: str = "guess") -> int | str:
    if len(values) > 1:
        return "sequence-repeated"
    if not values or not values[0]:
        return "sequence-missing"
    if form != "integer" and re.fullmatch(rb"-?[0-9]+", values[0]):
        number = int(values[0])
    elif form != "text" and len(values[0]) == 8:
        number = int.from_bytes(values[0], "big", signed=True)
    else:
        return "sequence-not-a-number"
    if number < 0:
        return "sequence-negative"
    return number if number < 2**63 else "sequence-out-of-range"
