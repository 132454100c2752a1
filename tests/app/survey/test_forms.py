"""Forms of numbers in a sample; no finding where a stream reads them so."""

from __future__ import annotations

import struct

import pytest

from kafka_ratchet.app.survey.forms import written_forms
from kafka_ratchet.app.survey.looking import TopicSample
from tests.app.survey.batches import batch_of
from tests.app.survey.plain_count import PlainRecord

NOW_S = 1_763_000_000


def forms(values: list[bytes], name: str = "ratchet-sequence", value: bytes = b"v") -> dict[str, str]:
    sample = TopicSample()
    for at in range(0, len(values), 500):
        records = [
            PlainRecord(0, at + n, 1, b"k", value, (("ratchet-producer", b"p"), (name, text)))
            for n, text in enumerate(values[at : at + 500])
        ]
        sample.add(batch_of(records), 500)
    return dict(written_forms(sample))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([n.to_bytes(8, "little") for n in range(1, 1_001)], 'sequence_form = "little-endian"'),
        ([struct.pack("<d", n) for n in range(1, 200)], "floating point"),
        ([b"%08x" % n for n in range(1, 200)], "would be read as the integer"),
        ([b"%016x" % n for n in range(1, 200)], "hexadecimal"),
        ([b"%x" % n for n in range(1, 200)], "hexadecimal"),
        ([b'"%d"' % n for n in range(200)], "a quoted text"),
        ([b"%d.0" % n for n in range(200)], "a number with a fraction"),
        ([b"%de0" % n for n in range(200)], "a number with a fraction"),
        ([b"0x%x" % n for n in range(200)], "hexadecimal with 0x"),
        ([b"AAAAAAAA%02dE=" % (n % 90) for n in range(200)], "base64"),
        ([b"+%d" % n for n in range(200)], "a sign"),
        ([b"%d" % ((NOW_S + n) * 10**6) for n in range(200)], "times in microseconds"),
        ([((NOW_S + n) * 10**3).to_bytes(8, "big") for n in range(200)], "times in milliseconds"),
    ],
)
def test_a_form_is_named(values: list[bytes], words: str) -> None:
    assert words in forms(values)["header:ratchet-sequence"]


@pytest.mark.parametrize(
    "values",
    [
        [n.to_bytes(8, "big") for n in range(1, 1_001)],
        [b"%d" % n for n in range(1_000)],
        [(n << 40).to_bytes(8, "big") for n in range(1, 500)],
        [(18 * 10**17 + n * 4_194_304).to_bytes(8, "big") for n in range(1, 500)],
    ],
)
def test_nothing_is_said_of_what_a_stream_reads(values: list[bytes]) -> None:
    assert forms(values) == {}


def test_other_places_are_left_alone() -> None:
    assert forms([b"abcd%04d" % n for n in range(200)], "trace") == {}
    assert "little-endian" in forms([n.to_bytes(8, "little") for n in range(1, 300)], "other")["header:other"]
