"""The processor of a stream: forwards a record, drops it as a duplicate, or dead-letters it with its reason.

Where deduplication is switched off it forwards everything, and the table stands still.
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
from kafka_ratchet.tables.map.map import UNASKED
from kafka_ratchet.tables.table import Sequences, SequenceTable
from kafka_ratchet.transport.assignment import QUEUE, LaneChannel
from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.batch.dropped import Dropped
from kafka_ratchet.transport.batch.record_batch import RecordBatch
from kafka_ratchet.transport.delivery import AgentCalls, CallChannel, Delivery, Output

VERDICT_NAMES: Final = (b"fresh", b"duplicate", b"invalid", b"too-late", b"content-differs")
"""Header text of a dropped record, by number of the verdict."""

NONE_LETTERED: Final[Mapping[int, str]] = MappingProxyType({})

Then = Callable[[Delivery, NDArray[np.bool_]], Awaitable[None]]
"""Last step of a batch: makes the outputs of its fresh records, bool[batch.count]."""


async def forward(delivery: Delivery, fresh: NDArray[np.bool_]) -> None:
    """Forward fresh records as they are."""
    delivery.forward(fresh)


async def withhold(delivery: Delivery, fresh: NDArray[np.bool_]) -> None:
    """Forward nothing, in a stream for its counts alone."""


SHOWN = 80
"""Characters of an identity in an error."""


class FormCheck:
    """Check of judged batches in a stream without a stated form of sequences."""

    def __init__(self, stream: str, header: str, identity: Identity) -> None:
        """Look at nothing yet.

        Args:
            stream: name
            header: name, with the sequence
            identity: setting of the stream
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
        """Compare each sequence of a batch with the last one of its identity.

        Nothing of the batch may be committed after an error.

        Args:
            batch: the records.
            verdicts: uint8[batch.count].
            reasons: uint8[batch.count], of invalid ones.
            against: int64[batch.count], last sequence before each record; -1 for none.
            identities: identities of the records; None: the columns of the batch have them.

        Raises:
            FormUnclear: a sequence seems to have another form; the text names the settings.
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
            f"{sentence(doubt, self._header, text, int(against[row]))}. Nothing of this batch is judged (stream "
            f"{self._stream}); see docs/reference/halted.md"
        )


def form_check(stream: str, source: SequenceSource, form: SequenceForm, identity: Identity) -> FormCheck | None:
    """Return the check of a stream; None where nothing is guessed."""
    if source.kind != "header" or form is not SequenceForm.GUESS:
        return None
    return FormCheck(stream, source.name, identity)


class Deduplicator:
    """Processor of a stream's batches: judges each in a Faust agent, and then makes the outputs of fresh records."""

    def __init__(
        self,
        sequences: Sequences,
        read: Reader,
        then: Then = forward,
        lettered: Mapping[int, str] = NONE_LETTERED,
        read_identities: IdentityReader | None = None,
        check: FormCheck | None = None,
    ) -> None:
        """Store the parts of the step, without connecting it.

        Args:
            sequences: the stream's table
            read: reads the sequences of a batch
            then: makes the outputs of fresh records
            lettered: reason of the dead letter, by verdict. Other records, neither fresh nor invalid, are dropped
            read_identities: reads the identities of a batch; None: its columns have them
            check: checks the form of sequences; None: the settings state it
        """
        self._sequences, self._read, self._then = sequences, read, then
        self._lettered, self._read_identities, self._check = lettered, read_identities, check
        self._calls: AgentCalls[NDArray[np.bool_]]

    def register(self, app: Any, name: str, partitions: int) -> None:
        """Add the stream's table and its deduplicating agent to a Faust app.

        Args:
            app: the Faust app
            name: of the stream
            partitions: of the input, the output and the changelog
        """
        app.tables.add(SequenceTable(app, name=name, sequences=self._sequences, partitions=partitions))
        channel = LaneChannel(app, maxsize=QUEUE)
        app.agent(channel, name=f"deduplicate-{name}")(self.connect(channel).agent)

    def connect(self, channel: CallChannel) -> AgentCalls[NDArray[np.bool_]]:
        """Return the calls through a channel. The caller must run the channel's agent."""
        self._calls = AgentCalls(self._sequences.changelog, channel, self.judge)
        return self._calls

    async def process(self, delivery: Delivery) -> deque[Output]:
        """Return the outputs of a batch; see `kafka_ratchet.transport.delivery.Processor`."""
        fresh = await self._calls.call(delivery)
        await self._then(delivery, fresh)
        return delivery.outputs

    def judge(self, delivery: Delivery) -> NDArray[np.bool_]:
        """Judge a batch, and make outputs of all but the fresh records.

        Returns:
            bool[batch.count], the fresh ones
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
        for verdict, reason in self._lettered.items():
            for index in np.flatnonzero(verdicts == verdict).tolist():
                delivery.dead_letter(index, reason)
        if spec.duplicates:
            is_kept = (verdicts != FRESH) & (verdicts != INVALID) & ~np.isin(verdicts, [*self._lettered])
            rows = np.flatnonzero(is_kept)
            if len(rows):
                delivery.drop(Dropped(rows, verdicts[rows], against[rows], VERDICT_NAMES))
        delivery.sequences = found
        fresh: NDArray[np.bool_] = verdicts == FRESH
        return fresh
