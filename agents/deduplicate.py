"""Processor of a stream: forwards each record, drops it as a duplicate, or makes it a dead letter with a reason.

While deduplication is switched off, it forwards every record and leaves the table of last sequences unchanged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.errors import FormUnclear
from kafka_ratchet.rule.extraction import IdentityReader, Reader
from kafka_ratchet.rule.form_scan import FormWatch
from kafka_ratchet.rule.identities import Identities, in_columns
from kafka_ratchet.rule.identity import Identity, SequenceForm, SequenceSource
from kafka_ratchet.rule.kernels import FRESH, INVALID
from kafka_ratchet.rule.number_forms import sentence
from kafka_ratchet.rule.reasons import REASONS, SEQUENCE_NOT_A_NUMBER
from kafka_ratchet.rule.verdicts import BY_NUMBER
from kafka_ratchet.tables.map.map import UNASKED
from kafka_ratchet.tables.table import Sequences, SequenceTable
from kafka_ratchet.transport.assignment import QUEUE, LaneChannel
from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.batch.dropped import DroppedBatch
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.delivery import AgentCalls, CallChannel, Delivery, Output

VERDICT_NAMES: Final = tuple(word.encode() for word in BY_NUMBER)
"""Names of the verdicts by number, for a header of dropped records."""

NO_LETTERS: Final[Mapping[int, str]] = MappingProxyType({})

Then = Callable[[Delivery, NDArray[np.bool_]], Awaitable[None]]
"""Function that makes the outputs of a batch's fresh records. Its array, bool[batch.count], is True for these.
"""


async def forward(delivery: Delivery, fresh: NDArray[np.bool_]) -> None:
    """Forward the fresh records unchanged. fresh: bool[batch.count]."""
    delivery.forward(fresh)


async def withhold(delivery: Delivery, fresh: NDArray[np.bool_]) -> None:
    """Forward no record, for a stream with the setting `forward = false`."""


SHOWN = 80
"""Maximum number of characters of an identity in an error message."""


class FormCheck:
    """Check of judged batches for sequences in another format than the stream assumes.

    It is for streams that do not set the format.
    """

    def __init__(self, stream: str, header: str, identity: Identity) -> None:
        """Start without any sequence read.

        Args:
            stream: name of the stream
            header: name of the header with the sequence
            identity: the stream's identity setting
        """
        self._stream, self._header, self._identity = stream, header, identity
        self._watches: dict[int, FormWatch] = {}

    def check(
        self,
        batch: RecordBatch,
        verdicts: NDArray[np.uint8],
        reasons: NDArray[np.uint8],
        against: NDArray[np.int64],
        identities: Identities | None,
    ) -> None:
        """Check the format of a batch's sequences, by comparison with each identity's last sequence.

        After an error the caller must commit nothing of the batch.

        Args:
            batch: the records.
            verdicts: uint8[batch.count], verdict on each record.
            reasons: uint8[batch.count], reason for each invalid record.
            against: int64[batch.count], last sequence of each record's identity before the record; -1 for none.
            identities: identities of the records; None: they are in the columns of the batch.

        Raises:
            FormUnclear: a sequence seems to have another format; the message names the settings.
        """
        columns = batch.columns
        starts, lengths = columns[records.FIRST], columns[records.FIRST_LENGTH]
        watch = self._watches.setdefault(batch.partition, FormWatch())
        not_numbers = np.flatnonzero(reasons == SEQUENCE_NOT_A_NUMBER)
        doubt = watch.look(batch.data, starts, lengths, verdicts, INVALID, against, not_numbers)
        if doubt is None:
            return
        row = doubt.row
        found = in_columns(batch, self._identity) if identities is None else identities
        identity = found.of(row).decode("utf-8", "backslashreplace")[:SHOWN]
        text = batch.data[starts[row] : starts[row] + lengths[row]].tobytes()
        owner = "" if self._identity == Identity.PARTITION else f", identity {identity!r}"
        raise FormUnclear(
            f"{batch.topic}, partition {batch.partition}, offset {int(batch.offsets[row])}{owner}: "
            f"{sentence(doubt, self._header, text, int(against[row]))}. No record of this batch was processed "
            f"(stream {self._stream}). For the remedy see docs/reference/halted.md"
        )


def form_check(stream: str, source: SequenceSource, form: SequenceForm, identity: Identity) -> FormCheck | None:
    """Return the format check of a stream; None if its settings state the format."""
    if source.kind != "header" or form is not SequenceForm.GUESS:
        return None
    return FormCheck(stream, source.name, identity)


class Deduplicator:
    """Processor of a stream's batches: finds duplicates in a Faust agent, then makes the outputs of fresh records."""

    def __init__(
        self,
        sequences: Sequences,
        read: Reader,
        then: Then = forward,
        dead_lettered: Mapping[int, str] = NO_LETTERS,
        read_identities: IdentityReader | None = None,
        check: FormCheck | None = None,
    ) -> None:
        """Store the parts of the processor, without connecting it to an agent.

        Args:
            sequences: table with the stream's last sequences
            read: function that reads the sequences of a batch
            then: function that makes the outputs of fresh records
            dead_lettered: reasons of dead letters, by number of the verdict. A record with a verdict missing here is
                dropped, unless the verdict is fresh or invalid.
            read_identities: function that reads the identities of a batch; None: they are in its columns
            check: check of the sequence format; None: the settings state the format
        """
        self._sequences, self._read, self._then = sequences, read, then
        self._dead_lettered, self._read_identities, self._check = dead_lettered, read_identities, check
        self._calls: AgentCalls[NDArray[np.bool_]]

    def register(self, app: Any, name: str, partitions: int) -> None:
        """Add the stream's table and its deduplicating agent to a Faust app.

        Args:
            app: the Faust app
            name: name of the stream
            partitions: partition count of input, output and changelog
        """
        app.tables.add(SequenceTable(app, name=name, sequences=self._sequences, partitions=partitions))
        channel = LaneChannel(app, maxsize=QUEUE)
        app.agent(channel, name=f"deduplicate-{name}")(self.connect(channel).agent)

    def connect(self, channel: CallChannel) -> AgentCalls[NDArray[np.bool_]]:
        """Return the calls to the deduplicating agent through a channel. The caller must run the agent."""
        self._calls = AgentCalls(self._sequences.changelog, channel, self.judge)
        return self._calls

    async def process(self, delivery: Delivery) -> deque[Output]:
        """Return the outputs of a batch; see `kafka_ratchet.transport.delivery.Processor`."""
        fresh = await self._calls.call(delivery)
        await self._then(delivery, fresh)
        return delivery.outputs

    def judge(self, delivery: Delivery) -> NDArray[np.bool_]:
        """Find the fresh records of a batch, and dead-letter or drop all others.

        Returns:
            bool[batch.count], True for fresh records
        """
        batch, spec = delivery.batch, delivery.spec
        partition = self._sequences.partition(batch.partition)
        partition.intervals.push(delivery.policy, batch)
        if not delivery.policy.deduplicate:
            return np.ones(batch.count, np.bool_)
        found, reasons = self._read(batch)
        asks = spec.duplicates or self._check is not None
        against = np.empty(batch.count, np.int64) if asks else UNASKED
        identities = self._read_identities(batch, reasons) if self._read_identities else None
        verdicts, reasons = partition.judge(batch, found, reasons, against, identities, spec.letters)
        if self._check is not None:
            self._check.check(batch, verdicts, reasons, against, identities)
        for index in np.flatnonzero(verdicts == INVALID).tolist():
            delivery.dead_letter(index, REASONS[reasons[index]])
        for verdict, reason in self._dead_lettered.items():
            for index in np.flatnonzero(verdicts == verdict).tolist():
                delivery.dead_letter(index, reason)
        if spec.duplicates:
            goes_to_topic = (verdicts != FRESH) & (verdicts != INVALID) & ~np.isin(verdicts, [*self._dead_lettered])
            rows = np.flatnonzero(goes_to_topic)
            if len(rows):
                delivery.keep_duplicates(DroppedBatch(rows, verdicts[rows], against[rows], VERDICT_NAMES))
        delivery.sequences = found
        # Every other record is dropped here: nothing below forwards it.
        fresh: NDArray[np.bool_] = verdicts == FRESH
        return fresh
