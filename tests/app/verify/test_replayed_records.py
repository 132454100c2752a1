"""Replayed records: what verify expects of them is what a worker's table says."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kafka_ratchet.app.verify import RecordView, Report
from kafka_ratchet.app.verify.compare import ExpectedPartition
from kafka_ratchet.app.verify.letters import DEAD_LETTER_HEADERS, own_headers
from kafka_ratchet.app.verify.rule import Rule
from kafka_ratchet.rule.extraction import computed_identity_reader, reader_for
from kafka_ratchet.rule.identity import Identity, SequenceSource
from kafka_ratchet.rule.kernels import DUPLICATE, FRESH, INVALID
from kafka_ratchet.tables.partition import SequencePartition
from tests.tables.fetched_records import Sent, fetched

SOURCE = SequenceSource.parse("header:ratchet-sequence")
NAMES = {FRESH: "fresh", DUPLICATE: "duplicate", INVALID: "invalid"}
OWN = ("a", "t", "i")
LETTER = st.none() | st.sampled_from(
    [
        b"",
        b"abc",
        b"/",
        b"a/t/i/0/1",
        b"b/t/i/0/1",
        b"a/a/t/i/0/1",
        b"t/i/0/1",
        b"t/i/0/2",
        b"t/i/0/" + b"9" * 20,
        b"t/i/0/01",
        b"t/i/0/1/2",
        b"t/i/-1/2",
        b"t/j/0/1",
        b"s/i/0/1",
    ]
)
MARKS = st.lists(
    st.tuples(st.just("ratchet-replays"), st.sampled_from([b"1", None, b"x"]))
    | st.tuples(st.just("ratchet-replayed-from"), LETTER)
    | st.tuples(st.sampled_from(["ratchet-replay", "ratchet-replayed-fromm"]), st.just(b"1")),
    max_size=3,
)
IDENTITIES = [Identity.KEY, Identity.parse(["key", "header:trace"]), Identity.parse("header:trace")]
VALUE = st.sampled_from([b"v", b"", None])
SENT = st.tuples(st.sampled_from([b"a", b"b", None]), st.sampled_from([b"1", b"2", b"3", b"bad"]), VALUE, MARKS)


@settings(deadline=None)
@example(Identity.KEY, [[(b"a", b"1", b"v", [("ratchet-replayed-from", b"abc")])]])
@given(st.sampled_from(IDENTITIES), st.lists(st.lists(SENT, max_size=8), max_size=3))
def test_verify_and_the_table_agree(
    identity: Identity, batches: list[list[tuple[bytes | None, bytes, bytes | None, list[tuple[str, bytes | None]]]]]
) -> None:
    report, expected = Report("events"), ExpectedPartition(Rule(identity, SOURCE, dead_letters=OWN), 0)
    read, read_identities, offset = reader_for(SOURCE), computed_identity_reader(identity), 0
    with tempfile.TemporaryDirectory() as folder:
        table = SequencePartition(Path(folder), "changelog", 0, identity, 1 << 20)
        table.open()
        for sent in batches:
            rows = [
                Sent(key, value, (("ratchet-sequence", number), ("trace", key), *marks))
                for key, number, value, marks in sent
            ]
            batch = fetched(rows, offset, identity_header=b"trace" if identity.header else b"")
            found, reasons = read(batch)
            identities = read_identities(batch, reasons) if read_identities else None
            verdicts, _ = table.judge(batch, found, reasons, identities=identities, letters=b"a/t/i/")
            views = [RecordView(row.key, row.value, list(row.headers), 0) for row in rows]
            wanted = [expected.add_input(offset + index, view, report) for index, view in enumerate(views)]
            assert [NAMES[each] for each in verdicts.tolist()] == wanted
            offset += len(rows)
        table.close()


def test_the_header_that_names_agents_is_no_part_of_the_record() -> None:
    agents: tuple[str, bytes | None] = ("ratchet-agents", b'["a"]')
    mine: list[tuple[str, bytes | None]] = [("trace", b"1"), agents]
    for reason, own in ((b"agent a: raised X", mine[:1]), (b"value does not decode: x", mine[:1]), (b"why", mine)):
        appended = [("ratchet-reason", reason), *((name, b"1") for name in DEAD_LETTER_HEADERS[1:])]
        assert own_headers([*mine, *appended]) == own
        assert own_headers([*mine[:1], *appended]) == mine[:1]
    named: list[tuple[str, bytes | None]] = [*mine[:1], ("ratchet-app", b"shop"), agents]
    appended = [("ratchet-reason", b"agent a: raised X"), *((name, b"1") for name in DEAD_LETTER_HEADERS[1:])]
    assert own_headers([*named, *appended]) == mine[:1]
