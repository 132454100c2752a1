"""Compiled classification of a survey's records: repeated identities, their age, and their values.

A table uses open addressing with linear probing, int64[slots, 4], so that a look-up takes one cache line.
Columns of a slot:

    HASH    seeded hash of the identity, 64 bits; 0: empty slot
    CLOCK   clock of the partition at the identity's last record, in ms; 0 without a timestamp
    OFFSET  offset of the identity's last record
    WHAT    upper 32 bits: upper half of the hash of the identity's first key and value. Lower 32 bits: the identity's
            partition, or SEVERAL.

Equal hashes count as equal identities: `kafka_ratchet.app.survey.report.mistaken` returns how often that is wrong. An
identity that comes in a second partition gets the mark SEVERAL. A second table then has an entry for each of its
partitions, under a hash of identity and partition. So the verdicts within one partition are exact, like a worker's. An
identity with all records in one partition has only one entry.

At a level above 0, only hashes with 0 in their lowest `level` bits are kept. This is a sample of one of 2^level
identities, with all of their records, and each record counts 2^level times.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_ratchet.app.survey.kernels import I64, U64, mixed
from kafka_ratchet.transport.batch.compiled import compiled

U8 = NDArray[np.uint8]

HASH, CLOCK, OFFSET, WHAT = range(4)
COLUMNS = 4
SEVERAL = 0x7FFFFFFF

FIRST, EQUAL, CONFLICT, ACROSS, ACROSS_CONFLICT, LEFT_OUT, NONE = range(7)
"""Verdicts, uint8.

FIRST: identity never seen. EQUAL, CONFLICT: seen in this partition, with the same key and value or with others.
ACROSS, ACROSS_CONFLICT: the same for identities seen only in other partitions. LEFT_OUT: not in the sample. NONE: no
identity.
"""
VERDICTS = 5
"""Number of verdicts counted with a weight."""

LEVEL_MOST = 20
"""Maximum level: number of a hash's lowest bits that choose the sample.

The highest 6 bits of a hash choose a group, and the other bits a slot.
"""
GROUPS = 64

BUCKETS = 65
"""Number of buckets. A number is counted by its bits: 0, 1, 2 to 3, 4 to 7, ..."""

EXAMPLES = 3


@compiled(inline="always")
def bits_of(number: int) -> int:
    """Return the number of bits of a number; 0 has none."""
    bits = 0
    while number > 0:
        number >>= 1
        bits += 1
    return bits


@compiled(inline="always")
def _slot_of(table: I64, wanted: np.uint64) -> np.int64:
    mask = np.uint64(table.shape[0] - 1)
    slot = (wanted >> np.uint64(LEVEL_MOST)) & mask
    key = np.int64(wanted)
    while table[slot, HASH] != 0 and table[slot, HASH] != key:
        slot = (slot + np.uint64(1)) & mask
    return np.int64(slot)


@compiled()
def _in_partition(wanted: np.uint64, partition: int) -> np.uint64:
    """Return a hash of identity and partition.

    Its lowest bits are those of the identity's hash, so that both hashes are in the same sample.
    """
    low = (np.uint64(1) << np.uint64(LEVEL_MOST)) - np.uint64(1)
    found = (mixed(wanted, np.uint64(partition), np.uint64(0x5851F42D4C957F2D)) & ~low) | (wanted & low)
    return found if found != np.uint64(0) else np.uint64(1) << np.uint64(63)


@compiled()
def classify(
    hashes: U64,
    values: U64,
    clocks: I64,
    offsets: I64,
    begin: int,
    partition: int,
    table: I64,
    several: I64,
    used: I64,
    most: I64,
    level: int,
    verdicts: U8,
    counts: I64,
    groups: I64,
    ages: I64,
    distances: I64,
    largest: I64,
    examples: I64,
) -> int:
    """Classify records of one partition by one candidate, until a table is full.

    Args:
        hashes: uint64[records], hashes of the identity; 0: no identity.
        values: uint64[records], hashes of key and value.
        clocks: int64[records], clock of the partition in ms, which never falls.
        offsets: int64[records], offsets of the records.
        begin: index of the first record to classify.
        partition: number of the partition.
        table: int64[slots, COLUMNS], table of all identities.
        several: int64[slots, COLUMNS], table of identities in several partitions.
        used: int64[2], number of entries in the two tables.
        most: int64[2], maximum number of entries of the two tables.
        level: level of the sample. A record counts 2^level times, which is its weight.
        verdicts: uint8[records], filled from begin on.
        counts: int64[VERDICTS], raised by the weight of each record.
        groups: int64[VERDICTS, GROUPS], raised by the weight of each record, at a level above 0.
        ages: int64[2, BUCKETS], weights by ms since the identity's last record, in this partition and in others.
        distances: int64[BUCKETS], weights by offsets since the identity's last record in this partition.
        largest: int64[2], largest age (ms) and distance in this partition.
        examples: int64[2, EXAMPLES, 4], first EQUAL and CONFLICT records: partition, offset, offset of the record
            before, age.

    Returns:
        index of the first record not classified: the number of records, or less if a table must grow.
    """
    weight = np.int64(1) << np.int64(level)
    outside = np.uint64(weight - 1)
    for i in range(begin, len(hashes)):
        wanted = hashes[i]
        if wanted == np.uint64(0):
            verdicts[i] = NONE
            continue
        if wanted & outside:
            verdicts[i] = LEFT_OUT
            continue
        value = np.int64(values[i] & np.uint64(0xFFFFFFFF00000000))
        slot = _slot_of(table, wanted)
        before = table
        verdict = FIRST
        if table[slot, HASH] == 0:
            if used[0] >= most[0]:
                return i
            used[0] += 1
            table[slot, HASH], table[slot, WHAT] = np.int64(wanted), value | np.int64(partition)
        else:
            what = table[slot, WHAT]
            where = what & np.int64(0x7FFFFFFF)
            verdict = CONFLICT if (what ^ value) >> np.int64(32) else EQUAL
            if where != partition:
                if used[1] + 2 > most[1]:
                    return i
                if where != SEVERAL:
                    other = _slot_of(several, _in_partition(wanted, where))
                    several[other, CLOCK], several[other, OFFSET] = table[slot, CLOCK], table[slot, OFFSET]
                    several[other, WHAT] = what
                    several[other, HASH] = np.int64(_in_partition(wanted, where))
                    table[slot, WHAT] = (what & ~np.int64(0x7FFFFFFF)) | np.int64(SEVERAL)
                    used[1] += 1
                own = _slot_of(several, _in_partition(wanted, partition))
                if several[own, HASH] == 0:
                    used[1] += 1
                    several[own, HASH] = np.int64(_in_partition(wanted, partition))
                    several[own, WHAT] = value | np.int64(partition)
                    verdict += ACROSS - EQUAL
                    if table[slot, CLOCK] > 0 and clocks[i] > 0:
                        ages[1, bits_of(abs(clocks[i] - table[slot, CLOCK]))] += weight
                else:
                    # The comparison of this partition's worker.
                    verdict = CONFLICT if (several[own, WHAT] ^ value) >> np.int64(32) else EQUAL
                table[slot, CLOCK], table[slot, OFFSET] = clocks[i], offsets[i]
                before, slot = several, own
        if verdict == EQUAL or verdict == CONFLICT:
            age = np.int64(-1)
            if before[slot, CLOCK] > 0 and clocks[i] > 0:
                age = max(clocks[i] - before[slot, CLOCK], np.int64(0))
                ages[0, bits_of(age)] += weight
                largest[0] = max(largest[0], age)
            distance = offsets[i] - before[slot, OFFSET]
            distances[bits_of(distance)] += weight
            largest[1] = max(largest[1], distance)
            kind = verdict - EQUAL
            for q in range(EXAMPLES):
                if examples[kind, q, 0] < 0:
                    examples[kind, q, 0], examples[kind, q, 1] = partition, offsets[i]
                    examples[kind, q, 2], examples[kind, q, 3] = before[slot, OFFSET], age
                    break
        before[slot, CLOCK], before[slot, OFFSET] = clocks[i], offsets[i]
        verdicts[i] = verdict
        counts[verdict] += weight
        if level > 0:
            groups[verdict, np.int64(wanted >> np.uint64(58))] += weight
    return len(hashes)


@compiled()
def refill(old: I64, new: I64, level: int) -> int:
    """Copy the entries in the sample of `level` from `old` into the empty table `new`; return their number.

    old, new: int64[slots, COLUMNS]
    """
    outside = (np.int64(1) << np.int64(level)) - np.int64(1)
    used = 0
    for i in range(old.shape[0]):
        if old[i, HASH] != 0 and old[i, HASH] & outside == 0:
            slot = _slot_of(new, np.uint64(old[i, HASH]))
            for column in range(COLUMNS):
                new[slot, column] = old[i, column]
            used += 1
    return used


RISES, STEPS, LATE, BEFORE, OWNERS = range(5)
ORDERS = 5
"""Kinds of counts of an order.

RISES: records above the highest number of their identity. STEPS: records just one above it. LATE: new records below it.
BEFORE: records below the first number read of their identity, and so late or repeats. OWNERS: identities.
"""

HIGHEST, LOWEST = 1, 2
"""Columns of a table of identities: highest number, and first number read."""


@compiled()
def order(
    owners: U64,
    numbers: I64,
    verdicts: U8,
    begin: int,
    partition: int,
    is_whole: bool,
    table: I64,
    used: I64,
    most: int,
    level: int,
    seen_level: int,
    counts: I64,
    lates: I64,
    largest: I64,
) -> int:
    """Follow the numbers of each identity in one partition, until the table is full.

    Args:
        owners: uint64[records], hashes of the identities; 0: no identity.
        numbers: int64[records]; negative: none.
        verdicts: uint8[records], verdicts of `classify` on identity and number together.
        begin: index of the first record to follow.
        partition: number of the partition.
        is_whole: True if the partition is read from its very first record on.
        table: int64[slots, COLUMNS], with HASH, HIGHEST and LOWEST.
        used: int64[1], number of entries in the table.
        most: maximum number of entries of the table.
        level: level of the sample of identities.
        seen_level: level of the sample of `verdicts`.
        counts: int64[ORDERS], raised by the weight of each record.
        lates: int64[BUCKETS], weights by distance of a late number below the highest.
        largest: int64[1], largest distance.

    Returns:
        index of the first record not followed: the number of records, or less if the table must grow.
    """
    weight = np.int64(1) << np.int64(level)
    outside = np.uint64(weight - 1)
    for i in range(begin, len(owners)):
        if owners[i] == np.uint64(0) or numbers[i] < 0 or owners[i] & outside:
            continue
        wanted = _in_partition(owners[i], partition)
        slot = _slot_of(table, wanted)
        if table[slot, HASH] == 0:
            if used[0] >= most:
                return i
            used[0] += 1
            table[slot, HASH], table[slot, HIGHEST], table[slot, LOWEST] = np.int64(wanted), numbers[i], numbers[i]
            counts[OWNERS] += weight
        elif numbers[i] > table[slot, HIGHEST]:
            counts[RISES] += weight
            if numbers[i] == table[slot, HIGHEST] + 1:
                counts[STEPS] += weight
            table[slot, HIGHEST] = numbers[i]
        elif verdicts[i] == FIRST:
            if numbers[i] < table[slot, LOWEST] and not is_whole:
                counts[BEFORE] += weight << np.int64(seen_level)
                continue
            late = table[slot, HIGHEST] - numbers[i]
            counts[LATE] += weight << np.int64(seen_level)
            lates[bits_of(late)] += weight << np.int64(seen_level)
            largest[0] = max(largest[0], late)
    return len(owners)
