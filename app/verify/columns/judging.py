"""Judges the batches of one input partition in turn, by verify's own rule over columns."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.agents.kernels import find_header
from kafka_ratchet.app.verify.columns import kernels
from kafka_ratchet.app.verify.state import Known
from kafka_ratchet.rule.form_scan import FormWatch
from kafka_ratchet.rule.identity import (
    MAX_IDENTITY_BYTES,
    PRODUCER_HEADER,
    Identity,
    SequenceForm,
    SequenceSource,
)
from kafka_ratchet.rule.number_forms import Doubt
from kafka_ratchet.transport.batch.record_batch import RecordBatch

ENTRIES_LEAST: Final = 1 << 12
SLOTS_PER_ENTRY: Final = 2
NAME_BYTES: Final = 16
"""Room for an identity's name at the beginning; it grows as they come."""
REPLAY: Final = np.frombuffer(b"ratchet-replay", np.uint8)

KINDS: Final = {"key": kernels.KEY, "producer": kernels.HEADER, "header": kernels.HEADER, "partition": kernels.CONSTANT}
FORMS: Final = {
    SequenceForm.TEXT: kernels.TEXT,
    SequenceForm.INTEGER: kernels.INTEGER,
    SequenceForm.GUESS: kernels.GUESS,
    SequenceForm.LITTLE_ENDIAN: kernels.LITTLE,
}

NOBODY: Final[Mapping[bytes, Known]] = MappingProxyType({})

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Places:
    """Places of a stream's identity and sequence, in the form of the compiled passes; see `kernels.read`."""

    names: NDArray[np.uint8]
    name_ends: Numbers
    kinds: Numbers
    form: int

    @classmethod
    def of(cls, identity: Identity, sequence: SequenceSource, form: SequenceForm) -> Places | None:
        """None where something stands in the value, or is computed by a function."""
        if sequence.kind not in ("header", "none") or not {part.kind for part in identity.parts} <= KINDS.keys():
            return None
        headers = [
            part.name or PRODUCER_HEADER if KINDS[part.kind] == kernels.HEADER else "" for part in identity.parts
        ]
        names = [name.encode() for name in (sequence.name, *headers)]
        return cls(
            np.frombuffer(b"".join(names), np.uint8),
            np.cumsum([len(name) for name in names], dtype=np.int64),
            np.array([KINDS[part.kind] for part in identity.parts], np.int64),
            kernels.NONE if sequence.kind == "none" else FORMS[form],
        )


@dataclass(slots=True)
class Judged:
    """Batch of the input, with its verdicts.

    Attributes:
        fresh: int64[], indices of records to forward, in order.
        invalid: int64[], indices.
        duplicates: number of duplicates.
        replayed: number of records with the header of a re-sent dead letter; their verdicts are wrong.
        owners: int64[records], number of each valid record's identity.
        before: int64[records], its last sequence before the record; -1 for none.
    """

    batch: RecordBatch
    fresh: Numbers
    invalid: Numbers
    duplicates: int
    replayed: int
    owners: Numbers
    before: Numbers
    doubt: Doubt | None = None
    """A sequence that seems to have another form than it is read in."""


class Judging:
    """The last sequences of one partition. In memory an identity takes 48 to 96 bytes, and its name up to twice."""

    def __init__(self, places: Places, known: Mapping[bytes, Known] = NOBODY) -> None:
        """known: last sequences before the first record."""
        self._places, self._watch = places, FormWatch()
        self._seed = np.uint64(secrets.randbits(64))
        names, entries = b"".join(known), max(ENTRIES_LEAST, 1 << len(known).bit_length())
        self._slots = np.full(SLOTS_PER_ENTRY * entries, kernels.FREE, np.int64)
        self._hashes = np.zeros(entries, np.uint64)
        self._entries = np.zeros((3, entries), np.int64)
        self._names = np.zeros(NAME_BYTES * entries + len(names), np.uint8)
        self._used = np.array([len(known), len(names)], np.int64)
        self._starts = np.fromiter((each.sequence for each in known.values()), np.int64, len(known))
        self._exact = np.fromiter((each.exact for each in known.values()), np.bool_, len(known))
        if known:
            self._begin(known, names)

    def _begin(self, known: Mapping[bytes, Known], names: bytes) -> None:
        count = len(known)
        self._names[: len(names)] = np.frombuffer(names, np.uint8)
        lengths = np.fromiter(map(len, known), np.int64, count)
        self._entries[0, :count] = np.cumsum(lengths) - lengths
        self._entries[1, :count], self._entries[2, :count] = lengths, self._starts
        kernels.hash_all(self._names, self._entries, self._seed, self._hashes[:count])
        kernels.place_again(self._slots, self._hashes, count)

    def take_back(self, owners: Numbers, before: Numbers) -> None:
        """Undo the last judged records: their identities get the last sequences before each."""
        np.minimum.at(self._entries[2], owners, before)  # of several of one identity, the first has the lowest

    def known(self) -> Iterator[tuple[bytes, Known]]:
        """Yield the last sequence of each identity that has one.

        Exact where a record of it was forwarded since the start.
        """
        names, (starts, lengths, lasts) = self._names.tobytes(), self._entries[:, : self._used[0]].tolist()
        exact = np.ones(len(lasts), np.bool_)
        exact[: len(self._starts)] = self._exact | (self._entries[2, : len(self._starts)] > self._starts)
        for start, length, last, is_exact in zip(starts, lengths, lasts, exact.tolist(), strict=True):
            if last >= 0:
                yield names[start : start + length], Known(last, is_exact)

    def judge(self, batch: RecordBatch) -> Judged:
        """Judge the next batch."""
        places, count = self._places, batch.count
        starts = np.zeros((len(places.kinds), count), np.int64)
        lengths, sequences = np.empty_like(starts), np.empty(count, np.int64)
        replayed = kernels.read(
            batch.data,
            batch.columns,
            places.names,
            places.name_ends,
            places.kinds,
            places.form,
            REPLAY,
            starts,
            lengths,
            sequences,
        )
        data, at, sizes = batch.data, starts[0], lengths[0]
        if len(places.kinds) > 1:
            data, at, sizes = _joined(batch, starts, lengths)
        verdicts = np.empty(count, np.uint8)
        owners, before = np.empty(count, np.int64), np.empty(count, np.int64)
        done = 0
        while True:
            done = kernels.judge(
                data,
                at,
                sizes,
                sequences,
                done,
                MAX_IDENTITY_BYTES,
                self._seed,
                self._slots,
                self._hashes,
                self._entries,
                self._names,
                self._used,
                verdicts,
                owners,
                before,
            )
            if done == count:
                break
            self._grow(int(sizes[done]))
        fresh, invalid = (np.flatnonzero(verdicts == each) for each in (kernels.FRESH, kernels.INVALID))
        doubt = self._doubt(batch, verdicts, before)
        return Judged(batch, fresh, invalid, count - len(fresh) - len(invalid), int(replayed), owners, before, doubt)

    def _doubt(self, batch: RecordBatch, verdicts: NDArray[np.uint8], before: Numbers) -> Doubt | None:
        """Look at the form of the sequences, where it is guessed."""
        places = self._places
        if places.form != kernels.GUESS:
            return None
        name = places.names[: places.name_ends[0]]
        starts, lengths, times = (np.empty(batch.count, np.int64) for _ in range(3))
        find_header(batch.data, batch.columns, name, starts, lengths, times)
        lengths[times > 1] = -1
        invalid = np.flatnonzero((verdicts == kernels.INVALID) & (lengths > 0) & (lengths != 8))
        return self._watch.look(batch.data, starts, lengths, verdicts, kernels.INVALID, before, invalid)

    def _grow(self, length: int) -> None:
        """Make room for one more identity of that length."""
        entries, used = int(self._used[0]), int(self._used[1])
        if entries == len(self._hashes):
            self._hashes = np.concatenate((self._hashes, np.zeros_like(self._hashes)))
            self._entries = np.concatenate((self._entries, np.zeros_like(self._entries)), axis=1)
            self._slots = np.full(SLOTS_PER_ENTRY * len(self._hashes), kernels.FREE, np.int64)
            kernels.place_again(self._slots, self._hashes, entries)
        if used + length > len(self._names):
            names = np.zeros(2 * len(self._names) + length, np.uint8)
            names[:used] = self._names[:used]
            self._names = names


def _joined(batch: RecordBatch, starts: Numbers, lengths: Numbers) -> tuple[NDArray[np.uint8], Numbers, Numbers]:
    """Identities of several parts, in memory of their own: bytes, starts, lengths."""
    taken = np.where(lengths > MAX_IDENTITY_BYTES, 0, np.maximum(lengths, 0))
    # The length in front of a part takes two bytes at most.
    out = np.zeros(int(taken.sum()) + 2 * lengths.size, np.uint8)
    at, sizes = np.zeros(batch.count, np.int64), np.zeros(batch.count, np.int64)
    kernels.join(batch.data, starts, lengths, MAX_IDENTITY_BYTES, out, at, sizes)
    out.flags.writeable = False  # as a batch's own bytes, so that the pass is compiled once
    return out, at, sizes
