"""Input records of the commit path's model, and their verdicts by the rule."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st

from kafka_ratchet.rule.identity import PRODUCER_HEADER, SEQUENCE_HEADER, Identity
from tests.transport.memory_log import Record
from tests.transport.modelled_worker import IDS


class Sent(NamedTuple):
    """A record of the input, and what it means by the rule. sequence, identity: None where it has none that counts."""

    record: Record
    identity: bytes | None
    sequence: int | None


names = st.sampled_from([b"a", b"b", b"c"])
sequences = st.one_of(
    st.integers(0, 12).map(lambda n: (n.to_bytes(8, "big"), n)),
    st.integers(0, 12).map(lambda n: (b"%d" % n, n)),
    st.sampled_from([(None, None), (b"", None), (b"-1", None), (b"many", None), (b"9" * 30, None)]),
)


IDS_SENT: list[tuple[bytes | None, bytes, bytes | None]] = [
    (b"a", b'{"n": "x"}', b"\1a\1x"),
    (b"a", b'{"n": "xy"}', b"\1a\2xy"),
    (b"ax", b'{"n": "y"}', b"\2ax\1y"),
    (b"a", b'{"n": 1, "x": 0}', b"\1a\1" + b"1"),
    (b"a", b'{"n": "1"}', b"\1a\1" + b"1"),
    (b"b" * 1_000, b'{"n": "\\u0000"}', b"\xe8\x07" + b"b" * 1_000 + b"\1\0"),
    (b"b" * 1_024, b'{"n": "x"}', None),
    (b"", b'{"n": "x"}', None),
    (None, b'{"n": "x"}', None),
    (b"a", b'{"n": 1.5}', None),
    (b"a", b"", None),
]
"""Header, value, and the identity that they are, if any."""
ids = st.sampled_from(IDS_SENT)
all_names = {b"", b"a", b"b", b"c", *(identity for _, _, identity in IDS_SENT if identity)}


@st.composite
def sent(draw: st.DrawFn, kind: Identity, above: int = 0) -> Sent:
    """above: what is added to its sequence."""
    if kind == IDS:
        header, value, identity = draw(ids)
        return Sent(Record(None, value, (("id", header),)), identity, 0)
    name: bytes | None = draw(names)
    if draw(st.integers(0, 14)) == 0:
        name = draw(st.sampled_from([None, b"x" * 1025]))
    header, sequence = draw(sequences)
    if above and sequence is not None:
        sequence += above
        header = b"%d" % sequence
    headers = [(SEQUENCE_HEADER, header)] if header is not None else []
    if kind is Identity.PRODUCER and name is not None:
        headers.append((PRODUCER_HEADER, name))
    key = name if kind is Identity.KEY else None
    identity = b"" if kind is Identity.PARTITION else name
    if identity is not None and len(identity) > 1024:
        identity = None
    value = draw(st.binary(max_size=6))
    return Sent(Record(key, value, tuple(headers)), identity, sequence)
