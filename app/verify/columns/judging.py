"""Verdicts on one input partition by the worker's compiled rule, batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.app.verify.rule import RecordView, Rule
from kafka_ratchet.app.verify.state import KnownSequence
from kafka_ratchet.rule.extraction import (
    FORMS,
    all_alike,
    find_headers,
    from_spans,
    identities_of,
    identity_reader_by_name,
)
from kafka_ratchet.rule.form_scan import FormWatch
from kafka_ratchet.rule.identities import Identities
from kafka_ratchet.rule.identity import MAX_IDENTITY_BYTES, Identity, SequenceForm, SequenceSource
from kafka_ratchet.rule.kernels import DUPLICATE, FRESH, INVALID
from kafka_ratchet.rule.number_forms import DoubtfulSequence
from kafka_ratchet.tables.map.map import LastSequences
from kafka_ratchet.transport.batch.record_batch import RecordBatch

NOBODY: Final[Mapping[bytes, KnownSequence]] = MappingProxyType({})
IN_VALUE: Final = frozenset({"field", "function"})
"""Kinds of identities and sequences read from a record's value, or computed by a function."""
TWICE: Final = 2_000
"""Number of a partition's first records that verify's plain rule checks too.

This takes some 60 ms.
"""

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class IdentityAndSequence:
    """Parts of a record (its key or headers) with identity and sequence."""

    identity: Identity
    sequence: SequenceSource
    form: SequenceForm

    @classmethod
    def of(cls, identity: Identity, sequence: SequenceSource, form: SequenceForm) -> IdentityAndSequence | None:
        """Return the parts with identity and sequence; None if one of them is in neither key nor headers."""
        kinds = {sequence.kind, *(part.kind for part in identity.parts)}
        return None if kinds & IN_VALUE else cls(identity, sequence, form)


@dataclass(slots=True)
class JudgedBatch:
    """Batch of the input with the verdicts of the compiled rule.

    Attributes:
        fresh: int64[], indices of the records to forward, in order.
        invalid: int64[], indices of the invalid records.
        duplicates: number of duplicates.
        replayed: number of re-sent dead letters; their verdicts here are wrong.
        identities: identity of each valid record.
        before: int64[records], last sequence of the record's identity before the record; -1: it had none.
    """

    batch: RecordBatch
    fresh: Numbers
    invalid: Numbers
    duplicates: int
    replayed: int
    identities: Identities
    before: Numbers
    doubt: DoubtfulSequence | None = None
    """First sequence that seems to be encoded in another form than the stream decodes; None: there is none."""
    contradicted: bool = False
    """True if the plain rule disagrees with the compiled one about one of these records."""

    def pending(self, rows: Numbers) -> list[tuple[bytes, int]]:
        """Return identity and previous sequence of each record in `rows`.

        The previous sequence is the last one of the identity before the record; -1: it had none.
        """
        names = [self.identities.of(row) for row in rows.tolist()]
        return list(zip(names, self.before[rows].tolist(), strict=True))


class PlainRuleCheck:
    """Check of the compiled rule by verify's plain rule, on a partition's first records."""

    def __init__(self, places: IdentityAndSequence, known: Mapping[bytes, KnownSequence]) -> None:
        self._rule = Rule(places.identity, places.sequence, places.form)
        self._known, self._last, self._left = known, dict[bytes, int](), TWICE

    def contradicts(self, batch: RecordBatch, verdicts: NDArray[np.uint8]) -> bool:
        """Return True if the plain rule disagrees with a verdict on the next batch.

        verdicts: uint8[batch.count], verdicts of the compiled rule
        """
        count, self._left = min(batch.count, self._left), max(0, self._left - batch.count)
        return any(self._judge(batch, index) != verdicts[index] for index in range(count))

    def _judge(self, batch: RecordBatch, index: int) -> int:
        headers = [(name, value) for name, value in batch.headers(index)]
        found = self._rule.identify(RecordView(batch.key(index), batch.value(index), headers, 0))
        if found is None:
            return INVALID
        identity, sequence = found
        start = self._known.get(identity)
        last = self._last.get(identity, -1 if start is None else start.sequence)
        self._last[identity] = max(last, sequence)
        return FRESH if sequence > last else DUPLICATE


class PartitionRule:
    """Compiled rule for one partition, with the last sequences of its identities.

    Memory: 50 to 100 bytes for each identity, plus the identity's bytes.
    """

    def __init__(self, places: IdentityAndSequence, known: Mapping[bytes, KnownSequence] = NOBODY) -> None:
        """Start before the partition's first record. known: last sequences by identity at that point."""
        self._form = FORMS[places.form]
        self._watch = FormWatch() if places.form is SequenceForm.GUESS else None
        self._headers = [places.sequence.name.encode()] if places.sequence.name else []
        self._has_sequence, self._has_identity = bool(self._headers), places.identity.header is not None
        self._headers += [places.identity.header.encode()] if places.identity.header is not None else []
        self._read_identities = identity_reader_by_name(places.identity)
        self._map, self._known = LastSequences(), known
        self._twice = PlainRuleCheck(places, known)
        if known:
            names = b"".join(known)
            lengths = np.fromiter(map(len, known), np.int64, len(known))
            lasts = np.fromiter((each.sequence for each in known.values()), np.int64, len(known))
            starts = np.cumsum(lengths) - lengths
            identities = Identities(np.frombuffer(names or b"\0", np.uint8), starts, lengths)
            self._map.judge(identities, MAX_IDENTITY_BYTES, lasts, np.zeros(len(known), np.uint8))
            self._map.commit()

    def take_back(self, pending: Iterable[tuple[bytes, int]]) -> None:
        """Set the last sequences of identities back to those before the pending records.

        pending: identity of each pending record, in order, and its last sequence before the record; -1: it had none
        """
        first: dict[bytes, int] = {}
        for identity, last in pending:
            first.setdefault(identity, last)
        self._map.put_back(first)
        self._map.commit()

    def known(self) -> Iterator[tuple[bytes, KnownSequence]]:
        """Yield each identity with its last sequence.

        `KnownSequence.exact` is False only if the sequence was inexact at the start, and the identity has had no
        higher one since.
        """
        slots = self._map.slots
        used = np.flatnonzero((slots.hashes != 0) & (slots.pushed >= 0))
        for identity, last in zip(slots.identities(used), slots.pushed[used].tolist(), strict=True):
            start = self._known.get(identity)
            yield identity, KnownSequence(last, start is None or start.exact or last > start.sequence)

    def judge(self, batch: RecordBatch) -> JudgedBatch:
        """Apply the rule to the next batch, and keep the last sequences for later batches."""
        found = find_headers(batch, self._headers) if self._headers else []
        spans = found[0] if self._has_sequence else None
        sequences, reasons = all_alike(batch) if spans is None else from_spans(batch, spans, self._form)
        if self._has_identity:
            identities = identities_of(batch, found[-1], reasons)
        else:
            identities = self._read_identities(batch, reasons)
        before = np.empty(batch.count, np.int64)
        verdicts = self._map.judge(identities, MAX_IDENTITY_BYTES, sequences, reasons, before)
        self._map.commit()
        fresh, invalid = (np.flatnonzero(verdicts == each) for each in (FRESH, INVALID))
        doubt = None
        if self._watch is not None and spans is not None:
            starts, lengths, times = spans
            lengths[times > 1] = -1
            not_numbers = np.flatnonzero((verdicts == INVALID) & (lengths > 0) & (lengths != 8))
            doubt = self._watch.look(batch.data, starts, lengths, verdicts, INVALID, before, not_numbers)
        duplicates, replayed = int(np.count_nonzero(verdicts == DUPLICATE)), len(batch.replays)
        contradicted = self._twice.contradicts(batch, verdicts)
        return JudgedBatch(batch, fresh, invalid, duplicates, replayed, identities, before, doubt, contradicted)
