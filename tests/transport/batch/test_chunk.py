import random
import struct

import pytest

from kafka_ratchet.errors import CorruptBatch
from kafka_ratchet.transport.batch.chunk import read_chunk
from kafka_ratchet.transport.batch.encoding import varint
from kafka_ratchet.transport.batch.record_batch import Header, RecordBatch
from tests.transport.batch.known_batches import (
    APPEND_TIME,
    COMPRESSIONS,
    TRANSACTIONAL,
    Source,
    columns_of,
    encode,
    marker,
    seal,
    with_field,
)
from tests.transport.batch.slow_reading import read_slowly

ABORT, COMMIT, LEADER_CHANGE = 0, 1, 2


def read(data: bytes, start: int = 0, aborted: list[tuple[int, int]] | None = None) -> RecordBatch:
    """Read with transport, and assert that the slow reading reads the same."""
    batch = read_chunk("events", 2, start, data, aborted or [])
    slow = read_slowly(start, data, aborted or [])
    assert (columns_of(batch), batch.next) == (slow.records, slow.next)
    return batch


def values(batch: RecordBatch) -> list[bytes | None]:
    return [batch.value(i) for i in range(batch.count)]


def sent(*texts: bytes) -> list[Source]:
    return [Source(value=text) for text in texts]


def test_no_bytes_are_an_empty_batch_that_does_not_move() -> None:
    batch = read(b"", 17)
    assert (batch.count, batch.start, batch.next) == (0, 17, 17)


def test_one_record_and_everything_about_it() -> None:
    headers = (("a", b"1"), ("a", None), ("größe", b""), ("", b"x"))
    batch = read(encode([Source(b"key", None, headers, 1_234)], 5), 5)
    assert (batch.topic, batch.partition, batch.start, batch.next, batch.count) == ("events", 2, 5, 6, 1)
    assert (batch.key(0), batch.value(0), batch.offsets.tolist(), batch.timestamps.tolist()) == (
        b"key",
        None,
        [5],
        [1_234],
    )
    assert batch.headers(0) == [Header("a", b"1"), Header("a", None), Header("größe", b""), Header("", b"x")]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_codec_is_that_of_the_last_batch_with_records(compression: str) -> None:
    other = "gzip" if compression == "none" else "none"
    rows = [Source(value=b"x" * 500)] * 3  # aiokafka leaves alone what does not shrink
    data = encode(rows, 0, other) + encode(rows, 3, compression) + marker(6, 1, COMMIT)
    batch = read(data)
    assert (batch.codec, batch.count, batch.next) == (compression, 6, 7)


def test_control_batches_move_the_position_and_hold_no_records() -> None:
    batch = read(marker(4, 9, COMMIT) + marker(5, 9, ABORT) + marker(6, 0, LEADER_CHANGE), 4)
    assert (batch.count, batch.next) == (0, 7)


def test_interleaved_transactions_of_several_producers() -> None:
    def batch_of(base: int, producer: int, text: bytes) -> bytes:
        return encode(sent(text, text), base, producer=producer, attributes=TRANSACTIONAL)

    data = b"".join(
        [
            batch_of(0, 1, b"one aborted"),
            batch_of(2, 2, b"two committed"),
            batch_of(4, 1, b"one aborted"),
            encode(sent(b"no transaction"), 6, producer=1),
            marker(7, 2, COMMIT),
            batch_of(8, 2, b"two aborted"),
            marker(10, 1, ABORT),
            batch_of(11, 1, b"one committed"),
            marker(13, 2, ABORT),
            batch_of(14, 2, b"two again"),
            marker(16, 2, COMMIT),
            marker(17, 1, COMMIT),
        ]
    )
    # As brokers list them: in the order in which they were aborted, not that of their first offsets.
    batch = read(data, 0, [(1, 0), (2, 8)])
    assert values(batch) == [
        *[b"two committed"] * 2,
        b"no transaction",
        *[b"one committed"] * 2,
        *[b"two again"] * 2,
    ]
    assert batch.next == 18
    assert values(read(data, 0, [(2, 8), (1, 0)])) == values(batch)


def test_an_aborted_transaction_that_began_before_the_fetch() -> None:
    data = encode(sent(b"a", b"b"), 100, producer=5, attributes=TRANSACTIONAL) + marker(102, 5, ABORT)
    batch = read(data + encode(sent(b"c"), 103, producer=5, attributes=TRANSACTIONAL), 101, [(5, 3)])
    assert values(batch) == [b"c"]


def test_an_aborted_transaction_without_records_in_reach_hides_nothing_else() -> None:
    data = encode(sent(b"a"), 0, producer=5, attributes=TRANSACTIONAL) + marker(1, 5, COMMIT)
    assert values(read(data, 0, [(5, 2)])) == [b"a"]


def test_an_aborted_transaction_whose_first_offset_is_inside_of_a_batch() -> None:
    """Compaction joins nothing, but a broker may list any offset up to the last of the first batch."""
    data = encode(sent(b"a", b"b", b"c"), 0, producer=5, attributes=TRANSACTIONAL) + marker(3, 5, ABORT)
    assert (read(data, 0, [(5, 2)]).count, read(data, 0, [(5, 3)]).count) == (0, 3)


def test_random_transactions_read_like_the_slow_reading() -> None:
    dice = random.Random(1)
    for _ in range(40):
        aborted: list[tuple[int, int]] = []
        open_since: dict[int, int] = {}
        data, at = b"", 0
        for _ in range(dice.randrange(1, 25)):
            who = dice.randrange(4)
            if who and dice.random() < 0.4 and who in open_since:
                kind = dice.choice([ABORT, COMMIT])
                if kind == ABORT:
                    aborted.append((who, open_since[who]))
                del open_since[who]
                data += marker(at, who, kind)
                at += 1
            else:
                rows = sent(*[b"%d" % (at + i) for i in range(dice.randrange(1, 4))])
                if who:
                    open_since.setdefault(who, at)
                codec = dice.choice(COMPRESSIONS)
                data += encode(rows, at, codec, who if who else -1, TRANSACTIONAL if who else 0)
                at += len(rows)
        read(data, 0, aborted)


def test_log_append_time_stands_for_every_record() -> None:
    rows = [Source(timestamp=1_000), Source(timestamp=2_000)]
    batch = read(encode(rows, attributes=APPEND_TIME, top_time=77_000))
    assert batch.timestamps.tolist() == [77_000, 77_000]


def test_timestamps_go_backwards_and_may_be_missing() -> None:
    rows = [Source(timestamp=5_000), Source(timestamp=1_000), Source(timestamp=9_000)]
    assert read(encode(rows)).timestamps.tolist() == [5_000, 1_000, 9_000]
    assert read(with_field(encode([Source()]), 27, ">q", -1)).timestamps.tolist() == [-1]


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("start", [10, 11, 13, 14])
def test_start_in_the_middle_of_a_batch(start: int, compression: str) -> None:
    texts = [b"%d" % i * 50 for i in range(10, 15)]
    batch = read(encode(sent(*texts), 10, compression) + encode(sent(b"next"), 15), start)
    assert values(batch) == [*texts[start - 10 :], b"next"]
    assert (batch.start, batch.next) == (start, 16)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 6])
def test_no_more_records_than_asked_for_and_the_next_read_goes_on(most: int, compression: str) -> None:
    texts = [b"%d" % number * 50 for number in range(5)]
    first = with_field(encode(sent(*texts[:3]), 0, compression), 12, ">i", 3)  # leader epochs
    data = first + with_field(encode(sent(*texts[3:]), 3, compression), 12, ">i", 5)
    found: list[bytes | None] = []
    position = 0
    while position < len(texts):
        batch = read_chunk("events", 2, position, data, [], records=most)
        assert batch.count == min(most, len(texts) - position)
        assert (batch.start, batch.next) == (position, position + batch.count)
        assert batch.epoch == (3 if batch.next <= 3 else 5)
        found += values(batch)
        position = batch.next
    assert found == texts


def test_batches_that_end_before_the_start_are_passed_over() -> None:
    batch = read(encode(sent(b"0", b"1"), 0) + encode(sent(b"2", b"3"), 2) + encode(sent(b"4"), 4), 3)
    assert values(batch) == [b"3", b"4"]
    nothing = read(encode(sent(b"0"), 0), 3)
    assert (nothing.count, nothing.next) == (0, 3)


@pytest.mark.parametrize("left", [1, 11, 12, 60, 61, -1])
def test_the_cut_off_last_batch_is_left_to_the_next_fetch(left: int) -> None:
    last = encode(sent(b"two", b"three"), 2)
    batch = read(encode(sent(b"zero", b"one")) + last[:left])
    assert (values(batch), batch.next) == ([b"zero", b"one"], 2)


def test_compaction_leaves_gaps_within_and_between_batches() -> None:
    rows = [Source(value=b"a", delta=2), Source(value=b"b", delta=7)]
    batch = read(encode(rows, 10, last_delta=9) + encode(sent(b"c"), 40, last_delta=3), 10)
    assert (batch.offsets.tolist(), batch.next) == ([12, 17, 40], 44)


def test_empty_batches_that_compaction_left_move_the_position() -> None:
    batch = read(encode([], 10, last_delta=9) + encode([], 20, last_delta=0), 10)
    assert (batch.count, batch.next) == (0, 21)


@pytest.mark.parametrize("codec", [1, 2, 3, 4, 5, 7])
def test_an_empty_batch_is_not_decompressed(codec: int) -> None:
    assert read(encode([], 0, attributes=codec, last_delta=4)).next == 5


def refused(data: bytes, *words: str, start: int = 0) -> None:
    with pytest.raises(CorruptBatch) as caught:
        read_chunk("events", 2, start, data, [])
    for word in ("events", "partition 2", *words):
        assert word in str(caught.value)


@pytest.mark.parametrize("magic", [0, 1, 3, -1])
def test_other_formats_are_refused(magic: int) -> None:
    data = encode(sent(b"x"), 7)
    refused(data[:16] + struct.pack(">b", magic) + data[17:], "offset 7", f"v{magic}", "v2")


def test_a_wrong_checksum_is_refused_wherever_the_bit_is() -> None:
    data = encode(sent(b"first"), 7) + encode(sent(b"second"), 8)
    whole = len(data) // 2
    for at in range(whole + 17, len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 0x10
        refused(bytes(flipped), "offset 8", "checksum", start=7)


@pytest.mark.parametrize("size", [1, 12, 60, 61, 65])
def test_not_one_whole_batch_is_refused(size: int) -> None:
    refused(encode(sent(b"x" * 10), 7)[:size], "offset 7", f"{size} bytes", "no whole record batch", start=7)


@pytest.mark.parametrize("length", [-(1 << 31), -1, 0, 48])
def test_a_batch_shorter_than_its_header_is_refused(length: int) -> None:
    data = encode(sent(b"x"), 7)
    refused(data[:8] + struct.pack(">i", length) + data[12:], "offset 7", "too short")


@pytest.mark.parametrize("base", [3, 4])
def test_a_chunk_that_goes_backwards_is_refused(base: int) -> None:
    refused(encode(sent(b"a", b"b"), 3) + encode(sent(b"c"), base), f"offset {base}", "begins before offset 5")


@pytest.mark.parametrize(("last", "count"), [(0, 2), (-1, 0), (-5, 1), (3, -1), (0x7FFFFFFF, -0x80000000)])
def test_counts_that_contradict_each_other_are_refused(last: int, count: int) -> None:
    data = with_field(with_field(encode(sent(b"x"), 7), 23, ">i", last), 57, ">i", count)
    refused(data, "offset 7", f"{count} records")


@pytest.mark.parametrize("count", [3, 1 << 20, 0x7FFFFFFF])
def test_more_records_than_there_are_bytes_for_are_refused_before_any_memory_is_taken(count: int) -> None:
    one = with_field(with_field(encode(sent(b"x")), 23, ">i", 0x7FFFFFFF), 57, ">i", count)
    chunk = b"".join(with_field(one, 0, ">q", i << 32) for i in range(40))
    refused(chunk, "offset 0", f"{count} records, too many for 8 bytes")


@pytest.mark.parametrize("base", [(1 << 63) - 1, -5, -(1 << 63)])
def test_offsets_outside_of_64_bits_are_refused(base: int) -> None:
    refused(with_field(encode(sent(b"a", b"b")), 0, ">q", base), f"offset {base}")


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_compression_is_refused(codec: int) -> None:
    refused(with_field(encode(sent(b"x"), 7), 21, ">h", codec), "offset 7", f"unknown compression {codec}")


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_what_cannot_be_decompressed_is_refused(codec: int) -> None:
    refused(with_field(encode(sent(b"x"), 7), 21, ">h", codec), "offset 7", "cannot be decompressed")


@pytest.mark.parametrize("size", [0, -1, -4, -5, 1 << 30, -(1 << 31)])
def test_snappy_blocks_of_impossible_size_are_refused(size: int) -> None:
    blocks = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + struct.pack(">i", size) + b"abcdefgh"
    head = encode(sent(b"x"), 7)[:61]
    refused(with_field(seal(head + blocks), 21, ">h", 2), "offset 7", "cannot be decompressed")


@pytest.mark.parametrize(
    "body", [b"", b"\x80" * 40, b"\xff" * 100_000, b"\x0a\0\0\0\x02\0", varint(20) + b"\0\0\0" + varint(4) + b"\0"]
)
def test_an_unreadable_marker_is_refused(body: bytes) -> None:
    refused(seal(marker(7, 1, COMMIT)[:61] + body), "offset 7", "transaction marker")


@pytest.mark.parametrize("kind", [ABORT, COMMIT])
def test_a_marker_emptied_by_compaction_is_passed_over(kind: int) -> None:
    """Kafka's log cleaner keeps the batch header of a producer's last marker, without the record."""
    emptied = seal(marker(1, 5, kind)[:57] + struct.pack(">i", 0))
    batch = read(encode(sent(b"a"), 0, attributes=0) + emptied + encode(sent(b"b"), 2, attributes=0))
    assert (values(batch), batch.next) == ([b"a", b"b"], 3)


def test_a_marker_of_an_unknown_kind_is_passed_over() -> None:
    batch = read(marker(0, 1, 300) + encode(sent(b"x"), 1, attributes=0) + marker(2, 1, -1))
    assert (values(batch), batch.next) == ([b"x"], 3)


def test_the_last_good_batch_is_named_when_a_later_one_is_damaged() -> None:
    bad = encode(sent(b"bad"), 9)
    refused(encode(sent(b"good"), 8) + seal(bad[:-2] + b"\x7f\x7f"), "offset 9", "do not fit", start=8)
