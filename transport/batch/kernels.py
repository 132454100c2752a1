"""Compiled passes over record batches: read them into columns, write kept records into a new batch.

Format: record batch v2 (KIP-98, org.apache.kafka.common.record.DefaultRecordBatch and DefaultRecord). Integers in a
record are zig-zag varints; integers in the batch header are big-endian.

Numba compiles these functions on first use and keeps the result (`cache=True`). The functions take and return plain
numpy arrays and integers, never raise, and never read or write outside the given spans: every length is checked against
the end of its batch before it is used. tests/transport/batch/slow_reading.py reads the same bytes record by record, and
tests compare the results.

Columns are one int64 array of shape (COLUMNS, capacity), a row per column, so that each column is contiguous:

    OFFSET        offset in the topic
    TIMESTAMP     ms since the epoch (the batch's append time where the topic stamps log-append time)
    BODY          where the record's bytes after the offset delta begin: key, value and headers, which are forwarded
                  untouched
    BODY_END      where these bytes end
    KEY, KEY_LENGTH, VALUE, VALUE_LENGTH
                  spans; length -1 is null
    HEADERS       where the header count begins
    FIRST, FIRST_LENGTH, FIRST_TIMES / SECOND, ...
                  the two requested headers: span of the value (length -1 is null, -2 absent) and number of
                  occurrences; of several occurrences the span is that of the last
"""

from __future__ import annotations

import numpy as np

from kafka_ratchet.transport.batch.compiled import compiled

OFFSET, TIMESTAMP, BODY, BODY_END, KEY, KEY_LENGTH, VALUE, VALUE_LENGTH, HEADERS = range(9)
FIRST, FIRST_LENGTH, FIRST_TIMES, SECOND, SECOND_LENGTH, SECOND_TIMES = range(9, 15)
COLUMNS = 15

ABSENT = -2
"""Length of an absent header; -1 stands for a null value."""

HEADER_SIZE = 61
"""Bytes of a record batch before its first record."""

RECORD_LEAST = 7
"""Minimum bytes a record takes: length, attributes, timestamp delta, offset delta, key, value, header count."""

RECORD_OVERHEAD = 26
"""Maximum bytes a record takes before its body: length (5), attributes (1), timestamp delta (10), offset delta (10)."""

NO_APPEND_TIME = -(2**63)
"""Value of `append_times` for a batch with a timestamp in each record; -1 stands for an unknown append time."""

CONTROL_KEY_LEAST = 4
"""Minimum bytes of a control record's key: version and type, 16 bits each."""


@compiled(inline="always")
def read_varint(data, at, end):
    """Read a zig-zag varint of at most 64 bits from data[at:end].

    Returns (value, position after it), or (0, -1) if the number is cut off or too long.
    """
    if at < end:
        first = np.uint64(data[np.uint64(at)])
        if first < np.uint64(0x80):  # nearly all of them
            return np.int64(first >> np.uint64(1)) ^ -np.int64(first & np.uint64(1)), np.int64(at + 1)
    raw = np.uint64(0)
    shift = np.uint64(0)
    while at < end and shift < np.uint64(70):
        byte = np.uint64(data[np.uint64(at)])
        at += 1
        if shift == np.uint64(63) and byte > np.uint64(1):
            return np.int64(0), np.int64(-1)
        raw |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), np.int64(at)
        shift += np.uint64(7)
    return np.int64(0), np.int64(-1)


@compiled(inline="always")
def write_varint(data, at, value):
    """Write value as a zig-zag varint at data[at:], where the caller has made room.

    Returns the position after it.
    """
    raw = np.uint64((value << 1) ^ (value >> 63))
    while raw >= np.uint64(0x80):
        data[at] = np.uint8((raw & np.uint64(0x7F)) | np.uint64(0x80))
        at += 1
        raw >>= np.uint64(7)
    data[at] = np.uint8(raw)
    return at + 1


@compiled(inline="always")
def copy_bytes(out, at, data, start, length):
    """Copy data[start:start+length] to out[at:], and return the position after the copy. out needs room for it."""
    # Unsigned: a signed index may count from the end, and LLVM does not vectorise a loop that may (five times as slow).
    to, begin = np.uint64(at), np.uint64(start)
    for q in range(np.uint64(length)):
        out[to + q] = data[begin + q]
    return at + length


@compiled(inline="always")
def varint_size(value):
    """Return the number of bytes that `write_varint` writes for value."""
    raw = np.uint64((value << 1) ^ (value >> 63))
    size = 1
    while raw >= np.uint64(0x80):
        raw >>= np.uint64(7)
        size += 1
    return size


@compiled(inline="always")
def read_word(data, at):
    """Return eight bytes of data as a little-endian number, in a single load without a loop."""
    begin = np.uint64(at)
    word = np.uint64(data[begin])
    word |= np.uint64(data[begin + np.uint64(1)]) << np.uint64(8)
    word |= np.uint64(data[begin + np.uint64(2)]) << np.uint64(16)
    word |= np.uint64(data[begin + np.uint64(3)]) << np.uint64(24)
    word |= np.uint64(data[begin + np.uint64(4)]) << np.uint64(32)
    word |= np.uint64(data[begin + np.uint64(5)]) << np.uint64(40)
    word |= np.uint64(data[begin + np.uint64(6)]) << np.uint64(48)
    word |= np.uint64(data[begin + np.uint64(7)]) << np.uint64(56)
    return word


@compiled(inline="always")
def same_bytes(data, at, other, start, length):
    """Return True if data[at:at+length] equals other[start:start+length]; eight bytes at a time."""
    if length >= 8:
        q = 8
        while q < length:
            if read_word(data, at + q - 8) != read_word(other, start + q - 8):
                return False
            q += 8
        return read_word(data, at + length - 8) == read_word(other, start + length - 8)
    for q in range(length):
        if data[at + q] != other[start + q]:
            return False
    return True


@compiled(inline="always")
def _is_name(data, at, length, name):
    # The end first: names of one program begin alike.
    return (
        length == len(name)
        and (length == 0 or data[at + length - 1] == name[length - 1])
        and same_bytes(data, at, name, 0, length)
    )


@compiled(inline="always")
def _span(data, at, end):
    """Read a length-prefixed span of a record.

    Returns (start, length, position after it); length -1 is null; position -1 means damaged data.
    """
    length, at = read_varint(data, at, end)
    if at < 0 or length < -1 or length > end - at:
        return np.int64(0), np.int64(0), np.int64(-1)
    if length < 0:
        return at, np.int64(-1), at
    return at, length, at + length


@compiled()
def read_records(
    data,
    starts,
    ends,
    base_offsets,
    last_deltas,
    base_times,
    append_times,
    counts,
    first_offset,
    first_name,
    second_name,
    replay_name,
    columns,
    replays,
):
    """Read the records of some uncompressed batches into columns.

    Args:
        data: uint8[bytes], the batches' bytes.
        starts, ends: int64[batches], where the records of each batch begin and end in data.
        base_offsets, last_deltas, base_times, counts: int64[batches], from the batch headers.
        append_times: int64[batches], ms; NO_APPEND_TIME where records carry their own timestamps.
        first_offset: lowest offset to read, because a fetch may begin in the middle of a batch.
        first_name, second_name: uint8[bytes], names of the two headers to locate in each record; empty for none.
        replay_name: uint8[bytes], prefix of the header names that mark a record re-sent from the dead letters.
        columns: int64[COLUMNS, capacity], to fill, with capacity for at least one record; reading ends when the
            columns are full.
        replays: int64[capacity], receives the indices of records with a header of that prefix.

    Returns:
        (records read, index of the first damaged batch or -1, True if records were left over, number of indexes in
        `replays`).
    """
    row = found = 0
    for batch in range(len(starts)):
        at = starts[batch]
        batch_end = ends[batch]
        previous = np.int64(-1)
        for _ in range(counts[batch]):
            length, at = read_varint(data, at, batch_end)
            if at < 0 or length < 1 or length > batch_end - at:
                return row, batch, False, found
            end = at + length
            time_delta, p = read_varint(data, at + 1, end)
            if p < 0:
                return row, batch, False, found
            offset_delta, p = read_varint(data, p, end)
            if p < 0 or offset_delta <= previous or offset_delta > last_deltas[batch]:
                return row, batch, False, found
            previous = offset_delta
            body = p
            key, key_length, p = _span(data, p, end)
            if p < 0:
                return row, batch, False, found
            value, value_length, p = _span(data, p, end)
            if p < 0:
                return row, batch, False, found
            headers = p
            header_count, p = read_varint(data, p, end)
            if p < 0 or header_count < 0 or header_count > end - p:
                return row, batch, False, found
            first = second = np.int64(0)
            first_length = second_length = np.int64(ABSENT)
            first_times = second_times = np.int64(0)
            is_replay = False
            for _ in range(header_count):
                name, name_length, p = _span(data, p, end)
                if p < 0 or name_length < 0:
                    return row, batch, False, found
                span, span_length, p = _span(data, p, end)
                if p < 0:
                    return row, batch, False, found
                if len(first_name) > 0 and _is_name(data, name, name_length, first_name):
                    first, first_length = span, span_length
                    first_times += 1
                if len(second_name) > 0 and _is_name(data, name, name_length, second_name):
                    second, second_length = span, span_length
                    second_times += 1
                if name_length >= len(replay_name) and _is_name(data, name, len(replay_name), replay_name):
                    is_replay = True
            if p != end:
                return row, batch, False, found
            at = end
            if base_offsets[batch] + offset_delta < first_offset:
                continue
            if row == columns.shape[1]:
                return row, -1, True, found
            columns[OFFSET, row] = base_offsets[batch] + offset_delta
            columns[TIMESTAMP, row] = (
                append_times[batch] if append_times[batch] != NO_APPEND_TIME else base_times[batch] + time_delta
            )
            columns[BODY, row] = body
            columns[BODY_END, row] = end
            columns[KEY, row] = key
            columns[KEY_LENGTH, row] = key_length
            columns[VALUE, row] = value
            columns[VALUE_LENGTH, row] = value_length
            columns[HEADERS, row] = headers
            columns[FIRST, row] = first
            columns[FIRST_LENGTH, row] = first_length
            columns[FIRST_TIMES, row] = first_times
            columns[SECOND, row] = second
            columns[SECOND_LENGTH, row] = second_length
            columns[SECOND_TIMES, row] = second_times
            if is_replay:
                replays[found] = row
                found += 1
            row += 1
        if at != batch_end:
            return row, batch, False, found
    return row, -1, False, found


@compiled()
def control_key(data):
    """Return where in `data` the first record's key begins; -1: the record is damaged.

    data: records of a control batch
    """
    end = len(data)
    _, at = read_varint(data, 0, end)
    if at < 0 or at >= end:
        return -1
    _, at = read_varint(data, at + 1, end)
    if at < 0:
        return -1
    _, at = read_varint(data, at, end)
    if at < 0:
        return -1
    key, length, at = _span(data, at, end)
    if at < 0 or length < CONTROL_KEY_LEAST:
        return -1
    return key


@compiled()
def write_records(data, columns, keep, first, out, limit):
    """Copy kept records, bodies byte for byte, into the record section of one new batch.

    Args:
        data, columns: results of `read_records`.
        keep: bool[records], True to copy.
        first: index of the first record to consider.
        out: uint8[bytes], room for limit bytes or one whole record, whichever is more; records begin at HEADER_SIZE.
        limit: size in bytes after which no further record is started.

    Returns:
        (index of the first record not yet considered, position after the last byte, records, base timestamp, highest
        timestamp).
    """
    at = HEADER_SIZE
    count = 0
    base_time = np.int64(-1)
    top_time = np.int64(-1)
    i = first
    while i < len(keep):
        if not keep[i]:
            i += 1
            continue
        time = columns[TIMESTAMP, i]
        if count == 0:
            base_time = time
        body = columns[BODY, i]
        body_length = columns[BODY_END, i] - body
        length = 1 + varint_size(time - base_time) + varint_size(count) + body_length
        if count > 0 and at + varint_size(length) + length > limit:
            break
        at = write_varint(out, at, length)
        out[at] = 0  # attributes of a record: none are defined
        at = write_varint(out, at + 1, time - base_time)
        at = write_varint(out, at, np.int64(count))
        at = copy_bytes(out, at, data, body, body_length)
        if count == 0 or time > top_time:
            top_time = time
        count += 1
        i += 1
    return i, at, count, base_time, top_time
