"""Compiled passes that convert between the map of last sequences and its changelog entries.

An entry has `ENTRY_PREFIX` and the identity as key, and the sequence as value; `kafka_ratchet.rule.kernels` describes
the map. A map with further state (`kafka_ratchet.rule.windows`) writes longer values of big-endian fields, with these
sizes in bytes:

  sequence 8 | flags 1 | words 1 | fingerprint 8 | first 8, seen 8 | bits 8 each word | seconds 4

- Flag 1: `fingerprint` is present.
- Flag 2: `first`, the identity's lowest sequence, and `seen`, the number of sequences seen from there, are present.
- Flag 4: the stream began to count after the identity's first record. `first` is then the last sequence at that time.
- `words` is the number of 64-bit words in `bits`.
- `seconds` is the identity's last activity. Only the store of a stream with bounds has it, after a plain sequence too.

Every map can read plain and longer values. A sequence below the last one counts as seen, unless `bits` says otherwise.
A missing fingerprint equals any other.
"""

from __future__ import annotations

import numpy as np

from kafka_ratchet.rule.kernels import CHANGED, I32, I64, KNOWN, U8, U32, U64, find, insert
from kafka_ratchet.rule.windows import ExtraColumns, StateOptions, add, clear, missing, set_seen
from kafka_ratchet.transport.batch import kernels as records
from kafka_ratchet.transport.batch.compiled import compiled

ENTRY_PREFIX = 105
"""b"i", the first byte of an identity's key in changelog and store."""

PROGRESS_KEY = 112
"""b"p", the whole key of the entry with the partition's progress."""

EVICTED_KEY = 101
"""b"e", the whole key of the entry with the totals of evictions."""


FINGERPRINT, COUNTED, COUNTED_FROM = 1, 2, 4
"""Flags of a value in the longer form."""

LONGER = 10
"""Bytes of a value in the longer form before its optional fields."""

WORDS_MOST = 64
"""Maximum number of 64-bit words of a window, which has at most 4,096 sequences."""


def longest_value(kept: StateOptions) -> int:
    """Return the maximum size of a value, in bytes."""
    return LONGER + kept.bytes + 4


@compiled()
def _put(out: U8, at: int, raw: np.uint64) -> int:
    for q in range(8):
        out[at + q] = np.uint8((raw >> np.uint64(56 - 8 * q)) & np.uint64(255))
    return at + 8


@compiled()
def _get(data: U8, at: int) -> np.uint64:
    raw = np.uint64(0)
    for q in range(8):
        raw = (raw << np.uint64(8)) | np.uint64(data[at + q])
    return raw


@compiled()
def is_plain(extras: ExtraColumns) -> bool:
    """Return True if the map has only sequences, without further state."""
    return len(extras.bits) == 0 and len(extras.prints) == 0 and len(extras.firsts) == 0


@compiled()
def _size(extras: ExtraColumns, slot: int) -> int:
    """Return the size of an identity's value in bytes, without the seconds."""
    if is_plain(extras):
        return 8
    size: int = LONGER + 8 * extras.bits.shape[1]
    if len(extras.prints) and extras.prints[slot] != np.uint64(0):
        size += 8
    if len(extras.firsts):
        size += 16
    return size


@compiled()
def _write_value(out: U8, at: int, sequence: int, extras: ExtraColumns, slot: int) -> int:
    """Write an identity's value without seconds, and return the position after it."""
    at = _put(out, at, np.uint64(sequence))
    if is_plain(extras):
        return at
    flags = 0
    if len(extras.prints) and extras.prints[slot] != np.uint64(0):
        flags |= FINGERPRINT
    if len(extras.firsts):
        flags |= COUNTED if extras.firsts[slot] >= 0 else COUNTED | COUNTED_FROM
    words = extras.bits.shape[1]
    out[at], out[at + 1] = flags, words
    at += 2
    if flags & FINGERPRINT:
        at = _put(out, at, extras.prints[slot])
    if flags & COUNTED:
        first = extras.firsts[slot]
        at = _put(out, at, np.uint64(first if first >= 0 else ~first))
        at = _put(out, at, np.uint64(extras.counts[slot]))
    for w in range(words):
        at = _put(out, at, extras.bits[slot, w])
    return at


@compiled()
def write_values(slots: I64, pushed: I64, seen: U32, extras: ExtraColumns, out: U8, ends: I64) -> None:
    """Write the values of some slots one after the other, in the form of the store.

    Args:
        slots: int64[n]
        pushed, extras: the map
        seen: times of the map; uint32[0] for values without seconds
        out: uint8[bytes], room for n values
        ends: int64[n], filled here with the position after each
    """
    at = 0
    for i in range(len(slots)):
        slot = slots[i]
        at = _write_value(out, at, pushed[slot], extras, slot)
        if len(seen):
            for q in range(4):
                out[at + q] = np.uint8((seen[slot] >> np.uint32(24 - 8 * q)) & np.uint32(255))
            at += 4
        ends[i] = at


@compiled()
def _length_of(data: U8, value: int, length: int) -> np.int64:
    """Return the length in bytes of a value without its seconds, by its flags; -1: not a value."""
    if length in (8, 12):
        return np.int64(8)
    if length < LONGER or data[value + 8] > 7 or data[value + 9] > WORDS_MOST:
        return np.int64(-1)
    flags = data[value + 8]
    size = LONGER + 8 * np.int64(data[value + 9])
    if flags & COUNTED_FROM and not flags & COUNTED:
        return np.int64(-1)
    if flags & FINGERPRINT:
        size += 8
    if flags & COUNTED:
        size += 16
    return size


@compiled()
def _are_counts(data: U8, value: int, size: int) -> bool:
    """Return True if a value's counts are possible: at least 1, and no more than its sequences allow."""
    if size == 8 or not data[value + 8] & COUNTED:
        return True
    at = value + LONGER + (8 if data[value + 8] & FINGERPRINT else 0)
    if data[at] > 127 or data[at + 8] > 127:
        return False
    last, first, count = np.int64(_get(data, value)), np.int64(_get(data, at)), np.int64(_get(data, at + 8))
    return bool(first <= last and count >= 1 and count - 1 <= last - first)


@compiled()
def _read_extras(data: U8, value: int, size: int, last: int, extras: ExtraColumns, slot: int) -> None:
    """Copy into a slot those parts of a value's further state that the map keeps.

    Args:
        data, value: bytes, and the position of the value.
        size: length from `_length_of`.
        last: last sequence of the identity.
        extras, slot: further state of the map, and the slot to fill.
    """
    bits, prints, firsts, counts = extras
    flags, words = np.int64(0), np.int64(0)
    if size > 8:
        flags, words = np.int64(data[value + 8]), np.int64(data[value + 9])
    at = value + LONGER
    if len(prints):
        prints[slot] = _get(data, at) if flags & FINGERPRINT else np.uint64(0)
    if flags & FINGERPRINT:
        at += 8
    if len(firsts):
        firsts[slot], counts[slot] = ~last, 1
        if flags & COUNTED:
            first = np.int64(_get(data, at))
            firsts[slot], counts[slot] = ~first if flags & COUNTED_FROM else first, np.int64(_get(data, at + 8))
    if flags & COUNTED:
        at += 16
    if not len(bits):
        return
    if words == bits.shape[1]:
        for w in range(words):
            bits[slot, w] = _get(data, at + 8 * w)
        return
    # Another window: unknown sequences count as seen.
    clear(bits, slot)
    known = 64 * words
    for distance in range(1, 64 * bits.shape[1] + 1):
        if distance > last:
            break
        was_seen = True
        if distance <= known:
            b = (last - distance) % known
            was_seen = _get(data, at + 8 * (b >> 6)) >> np.uint64(b & 63) & np.uint64(1) != np.uint64(0)
        if was_seen:
            set_seen(bits, slot, last - distance)


@compiled()
def write_keys(starts: I64, lengths: I32, arena: U8, slots: I64, out: U8, ends: I64) -> None:
    """Write the changelog keys of some slots one after the other.

    Args:
        starts, lengths, arena: the map
        slots: int64[n]
        out: uint8[bytes], room for n keys
        ends: int64[n], filled here with the position after each
    """
    at = np.int64(0)
    for i in range(len(slots)):
        out[at] = ENTRY_PREFIX
        at = records.copy_bytes(out, at + 1, arena, starts[slots[i]], np.int64(lengths[slots[i]]))
        ends[i] = at


@compiled()
def beginnings(starts: I64, lengths: I32, arena: U8, slots: I64, first: U64, second: U64) -> None:
    """Fill in the first 16 bytes of some identities, as two numbers that sort as the bytes do.

    Missing bytes count as 0.

    Args:
        starts, lengths, arena: the map
        slots: int64[n]
        first, second: uint64[n], filled here
    """
    for i in range(len(slots)):
        start, length = starts[slots[i]], lengths[slots[i]]
        high, low = np.uint64(0), np.uint64(0)
        for q in range(8):
            high <<= np.uint64(8)
            low <<= np.uint64(8)
            if q < length:
                high |= np.uint64(arena[start + q])
            if q + 8 < length:
                low |= np.uint64(arena[start + q + 8])
        first[i], second[i] = high, low


@compiled()
def write_entries(
    first: int,
    starts: I64,
    lengths: I32,
    pushed: I64,
    arena: U8,
    slots: I64,
    sizes: I64,
    extras: ExtraColumns,
    out: U8,
    at: int,
    count: int,
    limit: int,
) -> tuple[int, int, int]:
    """Write changed identities as changelog records; an evicted identity becomes a tombstone.

    The key is b"i" + identity. The value has the format in the module's docstring, without seconds.

    Args:
        first: index in `slots` of the first identity to write.
        starts, lengths, pushed, arena, slots, sizes, extras: the map.
        out: uint8[bytes], with room for `limit` bytes or one whole record, whichever is more.
        at, count: numbers of bytes and of records already in `out`.
        limit: maximum bytes, unless a single record is longer.

    Returns:
        Index of the first identity not written, position after the last byte, and number of records in `out`.
    """
    i = first
    while i < sizes[CHANGED]:
        slot = slots[i]
        length = np.int64(lengths[slot])
        gone = pushed[slot] < 0
        size = -1 if gone else _size(extras, slot)
        body = 1 + 1 + records.varint_size(count) + records.varint_size(length + 1) + length + 1
        body += records.varint_size(size) + max(size, 0) + 1
        if count > 0 and at + records.varint_size(body) + body > limit:
            break
        at = records.write_varint(out, at, body)
        out[at] = 0
        at = records.write_varint(out, at + 1, np.int64(0))
        at = records.write_varint(out, at, np.int64(count))
        at = records.write_varint(out, at, length + 1)
        out[at] = ENTRY_PREFIX
        at = records.copy_bytes(out, at + 1, arena, starts[slot], length)
        at = records.write_varint(out, at, np.int64(size))
        if not gone:
            at = _write_value(out, at, pushed[slot], extras, slot)
        at = records.write_varint(out, at, np.int64(0))
        count += 1
        i += 1
    return i, at, count


@compiled()
def load(
    data: U8,
    columns: I64,
    seed: np.uint64,
    hashes: U64,
    starts: I64,
    lengths: I32,
    pushed: I64,
    changed: I32,
    unsaved: U8,
    seen: U32,
    arena: U8,
    sizes: I64,
    mark: int,
    since: int,
    extras: ExtraColumns,
    sums: I64,
) -> tuple[int, int, int]:
    """Apply committed entries to the map in order, so that an identity's last entry stays.

    Args:
        data, columns: a record batch.
        seed, hashes, starts, lengths, pushed, changed, unsaved, seen, arena, sizes, extras: the map, with room for all
            records.
        mark: new value of `unsaved`: 1 for entries of the changelog, 0 for entries of the store; only an entry of the
            store may end with 4 bytes of `seen`.
        since: minimum of `seen` in seconds; it replaces an earlier timestamp of a record.
        sums: sum of added missing sequences, see `kafka_ratchet.rule.windows.add`; only for entries of the changelog.

    Returns:
        Index of the first foreign entry, of the last progress entry, and of the last entry with totals of evictions;
        each may be -1.
    """
    progress, evicted = -1, -1
    for i in range(columns.shape[1]):
        start, length = columns[records.KEY, i], columns[records.KEY_LENGTH, i]
        if length == 1 and data[start] == PROGRESS_KEY:
            progress = i
            continue
        if mark and length == 1 and data[start] == EVICTED_KEY:
            evicted = i
            continue
        value, value_length = columns[records.VALUE, i], columns[records.VALUE_LENGTH, i]
        if length < 1 or data[start] != ENTRY_PREFIX:
            return i, progress, evicted
        if mark and value_length < 0:
            slot, h = find(data, start + 1, length - 1, seed, hashes, starts, lengths, arena)
            if slot >= 0 and pushed[slot] >= 0:
                sizes[KNOWN] -= 1
                if len(extras.firsts):
                    add(sums, -missing(extras.firsts[slot], pushed[slot], extras.counts[slot]))
                pushed[slot] = -1
                unsaved[slot] = 1
            continue
        if value_length < 8 or data[value] > 127:  # a negative sequence
            return i, progress, evicted
        size = _length_of(data, value, value_length)
        if not (value_length == size or (not mark and value_length == size + 4)) or not _are_counts(data, value, size):
            return i, progress, evicted
        raw = _get(data, value)
        slot, h = find(data, start + 1, length - 1, seed, hashes, starts, lengths, arena)
        if slot < 0:
            slot = -1 - slot
            insert(data, start + 1, length - 1, slot, h, hashes, starts, lengths, pushed, changed, arena, sizes)
        if pushed[slot] < 0:
            sizes[KNOWN] += 1
        elif mark and len(extras.firsts):
            add(sums, -missing(extras.firsts[slot], pushed[slot], extras.counts[slot]))
        pushed[slot] = np.int64(raw)
        if not is_plain(extras):
            _read_extras(data, value, size, pushed[slot], extras, slot)
        if mark and len(extras.firsts):
            add(sums, missing(extras.firsts[slot], pushed[slot], extras.counts[slot]))
        unsaved[slot] = mark
        if len(seen):
            when = max(columns[records.TIMESTAMP, i] // 1000, since)
            if value_length > size:
                when = np.int64(0)
                for q in range(size, size + 4):
                    when = (when << 8) | np.int64(data[value + q])
            seen[slot] = np.uint32(when)
    return -1, progress, evicted
