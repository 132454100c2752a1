"""Compilation of Numba's kernels, before a worker has partitions that would wait for it."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import structlog

from kafka_ratchet.agents.deduplicate import VERDICT_NAMES, form_check
from kafka_ratchet.rule.extraction import computed_identity_reader, reader_for
from kafka_ratchet.rule.identities import in_columns
from kafka_ratchet.rule.identity import PRODUCER_HEADER, SEQUENCE_HEADER, Identity, SequenceForm, SequenceSource
from kafka_ratchet.rule.windows import StateOptions
from kafka_ratchet.spark_sink.log_lines import announced
from kafka_ratchet.tables.activity import ActivityCounter
from kafka_ratchet.tables.map.map import LastSequences
from kafka_ratchet.tables.totals import Progress
from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.batch.chunk import read_chunk
from kafka_ratchet.transport.batch.dropped import DroppedBatch, encode_dropped
from kafka_ratchet.transport.batch.encoding import EncodedBatch, entry_batch, forward
from kafka_ratchet.transport.batch.partitioner import choose_partitions
from kafka_ratchet.transport.batch.rows import encode_pairs, spans

log = structlog.get_logger(__name__)

COMPILING: Final = "compiling the judging code, once on each machine and after each update"


def compile_kernels() -> None:
    """Compile the kernels, or load them from Numba's cache. A compilation that takes long is logged."""
    with announced(COMPILING, log.info):
        _run_one_batch()


def _run_one_batch() -> None:
    """Call every kernel once, with a batch of one record."""
    headers = (SEQUENCE_HEADER.encode(), PRODUCER_HEADER.encode())
    room = np.empty(256, np.uint8)
    end, count = entry_batch(room, [(b"ia", struct.pack(">q", 1))])
    chunk = EncodedBatch.finish(room[:end], count).seal(1, 0, 0)
    batch = read_chunk("compile", 0, 0, bytes(chunk), [], sequence_header=headers[0], identity_header=headers[1])
    source = SequenceSource("header", SEQUENCE_HEADER)
    sequences, reasons = reader_for(source)(batch)
    if check := form_check("compile", source, SequenceForm.GUESS, Identity.KEY):
        check.check(batch, np.zeros(1, np.uint8), reasons, np.zeros(1, np.int64), None)
    table = LastSequences()
    by_key = in_columns(batch, Identity.KEY)
    table.absent(by_key, 1024)
    table.judge(by_key, 1024, sequences, reasons)
    if of_parts := computed_identity_reader(Identity.parse("key,header:a")):
        of_parts(batch, reasons)
    sequences[:], reasons[:] = 1, 0
    ActivityCounter(records.KEY).add(batch, table.judge(by_key, 1024, sequences, reasons))
    table.encode_changes((b"p", Progress(1, 1, 0, 0).pack()), 1 << 20)
    table.rollback()
    table.commit()
    list(table.unsaved_entries())
    found = np.zeros(1, np.int64), np.ones(1, np.uint8), np.zeros(1, np.int64)
    encode_dropped(batch, DroppedBatch(*found, VERDICT_NAMES), "compile", 1 << 20, "none", values=True)
    table.load(batch, saved=True)
    table.get(b"a")
    table.grow(1 << 14)
    table.slots.pack()
    timed = LastSequences(timed=True)
    for _ in range(2):
        timed.judge(by_key, 1024, sequences, reasons)
        timed.slots.quiet(1, 0, 1)
    more = LastSequences(timed=True, kept=StateOptions(64, fingerprints=True, dense=True))
    reasons[:] = 0
    more.judge(by_key, 1024, sequences, reasons, batch=batch)
    more.commit()
    list(more.unsaved_entries())
    list(forward(batch, np.ones(1, np.bool_), 1 << 20, "none"))
    encode_pairs([(b"a", b"1")], 1 << 20)
    choose_partitions(spans([b"a"]), np.full(1, -1, np.int64), 1, 0)
