"""Change events in Debezium's JSON: which settings drop real rows, and which do not. docs/guide/debezium.md says why.

The tables are of a depot that sends parcels. The form of the events is that of Debezium's JSON converter with schemas,
whose `schema` parts are left empty here.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kafka_ratchet.app.settings_sections import StreamSettings
from kafka_ratchet.app.verify import RecordView, Report
from kafka_ratchet.app.verify.compare import ExpectedPartition
from kafka_ratchet.app.verify.rule import Rule
from kafka_ratchet.rule.extraction import computed_identity_reader, reader_for
from kafka_ratchet.rule.identity import SequenceSource
from kafka_ratchet.rule.kernels import DUPLICATE, FRESH, INVALID
from kafka_ratchet.rule.reasons import REASONS
from kafka_ratchet.tables.partition import SequencePartition
from tests.tables.fetched_records import Sent, fetched

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "debezium.md").read_text("utf-8")
NAMES = {FRESH: "fresh", DUPLICATE: "duplicate", INVALID: "invalid"}


class Change(NamedTuple):
    """A row's change: what the connector knows of it."""

    op: str
    key: dict[str, Any]
    row: dict[str, Any]
    source: dict[str, Any]
    transaction: dict[str, Any] | None = None

    def sent(self) -> Sent:
        is_delete = self.op == "d"
        payload = {
            "before": self.row if is_delete else None,
            "after": None if is_delete else self.row,
            "source": self.source,
            "op": self.op,
            "ts_ms": 1700000000123,
            "transaction": self.transaction,
        }
        key, value = ({"schema": {}, "payload": part} for part in (self.key, payload))
        return Sent(json.dumps(key).encode(), json.dumps(value).encode())


def in_postgres(
    op: str, parcel: int, order: int, lsn: int, tx: int, number: int, *, last_commit: int, key: str = "id"
) -> Change:
    row = {"id": parcel, "order_no": order, "state": f"{op}{lsn}"}
    snapshot = "true" if op == "r" else "false"
    source = {
        "version": "2.7.0.Final",
        "connector": "postgresql",
        "name": "depot",
        "ts_ms": 1700000000000,
        "snapshot": snapshot,
        "db": "depot",
        "sequence": json.dumps([str(last_commit), str(lsn)], separators=(",", ":")),
        "schema": "public",
        "table": "parcels",
        "txId": tx,
        "lsn": lsn,
        "xmin": None,
    }
    inside = {"id": f"{tx}:{last_commit}", "total_order": number, "data_collection_order": number}
    return Change(op, {key: row[key]}, row, source, None if op == "r" else inside)


def postgres(key: str = "id") -> list[Change]:
    """By primary key, or by another column of the table (message.key.columns)."""

    def at(op: str, parcel: int, order: int, lsn: int, tx: int, number: int, last_commit: int) -> Change:
        return in_postgres(op, parcel, order, lsn, tx, number, last_commit=last_commit, key=key)

    return [
        # The snapshot: every row has the position at which it was taken.
        *(at("r", parcel, 1, 1000, 700, 0, 1000) for parcel in (1, 2)),
        # A COPY, or one INSERT of several rows: they may share one position.
        *(at("c", parcel, 1, 2000, 701, parcel - 2, 1000) for parcel in (3, 4, 5)),
        # Two transactions at work at once: 703 began later and was committed first.
        at("u", 2, 1, 3100, 703, 1, 2000),
        at("u", 1, 1, 3000, 702, 1, 3200),
        # One row twice in a transaction, and one whose primary key changes: two events of one position.
        at("u", 1, 1, 3300, 702, 2, 3200),
        at("d", 4, 1, 3400, 702, 3, 3200),
        at("c", 9, 1, 3400, 702, 4, 3200),
    ]


def mysql() -> list[Change]:
    def at(op: str, parcel: int, file: int, pos: int, row: int, tx: int, number: int) -> Change:
        source = {
            "version": "2.7.0.Final",
            "connector": "mysql",
            "name": "depot",
            "ts_ms": 1700000000000,
            "snapshot": "true" if op == "r" else "false",
            "db": "depot",
            "table": "parcels",
            "server_id": 0 if op == "r" else 223344,
            "gtid": None,
            "file": f"mysql-bin.{file:06}",
            "pos": pos,
            "row": row,
            "thread": None,
            "query": None,
        }
        inside = {"id": f"file=mysql-bin.{file:06},pos={tx}", "total_order": number, "data_collection_order": number}
        shown = {"id": parcel, "state": f"{op}{pos}"}
        return Change(op, {"id": parcel}, shown, source, None if op == "r" else inside)

    return [
        *(at("r", parcel, 3, 154, 0, 0, 0) for parcel in (1, 2)),
        # One statement for several rows: one position, each row its number.
        *(at("u", parcel, 3, 9000, parcel - 1, 8900, parcel) for parcel in (1, 2)),
        # The next binlog file begins at its beginning.
        at("u", 1, 4, 484, 0, 400, 1),
        at("d", 2, 4, 700, 0, 600, 1),
        at("c", 7, 4, 700, 0, 600, 2),
    ]


def judged(tmp_path: Path, settings: dict[str, Any], changes: list[Change]) -> list[str]:
    """Verdicts of the worker's table on these events; verify agrees with each."""
    stream = StreamSettings(input="in", output="out", dead_letters="dead", **settings)
    source = SequenceSource.parse(stream.sequence)
    table = SequencePartition(tmp_path / "store", "changelog", 0, stream.identity, 1 << 20)
    table.open()
    rows = [change.sent() for change in changes]
    batch = fetched(rows)
    found, reasons = reader_for(source)(batch)
    read = computed_identity_reader(stream.identity)
    verdicts, _ = table.judge(batch, found, reasons, identities=read(batch, reasons) if read else None)
    table.close()
    named = [NAMES[verdict] for verdict in verdicts.tolist()]
    expected, report = ExpectedPartition(Rule(stream.identity, source), 0), Report("parcels")
    views = [RecordView(row.key, row.value, [], 0) for row in rows]
    assert [expected.add_input(offset, view, report) for offset, view in enumerate(views)] == named
    return named


def dropped(tmp_path: Path, settings: dict[str, Any], changes: list[Change]) -> list[str]:
    """Real rows that are dropped, as op and position. Each event comes once."""
    verdicts = judged(tmp_path, settings, changes)
    pairs = zip(verdicts, changes, strict=True)
    return [
        f"{each.op} {each.source.get('lsn') or each.source['pos']}" for verdict, each in pairs if verdict != "fresh"
    ]


def test_a_position_as_the_sequence_of_a_partition_drops_real_rows(tmp_path: Path) -> None:
    settings = {"identity": "partition", "sequence": "field:payload.source.lsn"}
    # All but the first of a position, and the transaction that was written before one that was committed before it.
    assert dropped(tmp_path, settings, postgres()) == ["r 1000", "c 2000", "c 2000", "u 3000", "c 3400"]


def test_a_position_as_the_sequence_of_a_key_is_right_only_where_the_key_is_the_rows(tmp_path: Path) -> None:
    settings = {"identity": "key", "sequence": "field:payload.source.lsn"}
    assert dropped(tmp_path, settings, postgres()) == []
    # Several rows of an order under one key: the second row of a position is dropped, and so is the older position.
    drops = dropped(tmp_path / "2", settings, postgres("order_no"))
    assert drops == ["r 1000", "c 2000", "c 2000", "u 3000", "c 3400"]


def test_the_number_of_a_transaction_drops_all_but_its_first_row(tmp_path: Path) -> None:
    settings = {"identity": "partition", "sequence": "field:payload.source.txId"}
    drops = dropped(tmp_path, settings, postgres())
    assert drops == ["r 1000", "c 2000", "c 2000", "u 3000", "u 3300", "d 3400", "c 3400"]


def test_the_pair_of_positions_is_no_number(tmp_path: Path) -> None:
    settings = {"identity": "key", "sequence": "field:payload.source.sequence"}
    assert judged(tmp_path, settings, postgres()) == ["invalid"] * 10
    # As an id it stands for several rows.
    as_id = {"identity": "field:payload.source.sequence", "sequence": "none"}
    assert dropped(tmp_path / "2", as_id, postgres()) == ["r 1000", "c 2000", "c 2000", "c 3400"]


def test_a_position_in_a_binlog_begins_anew_with_each_file(tmp_path: Path) -> None:
    settings = {"identity": "key", "sequence": "field:payload.source.pos"}
    assert dropped(tmp_path, settings, mysql()) == ["u 484", "d 700"]
    # All rows of a snapshot have one position, and row 0.
    place = [f"field:payload.source.{part}" for part in ("file", "pos", "row")]
    drops = dropped(tmp_path / "2", {"identity": place, "sequence": "none"}, mysql())
    assert drops == ["r 154", "c 700"]


BLOCKS = dict(
    zip(re.findall(r"^### (.*)$", PAGE, re.M), re.findall(r"^```toml\n(.*?)^```$", PAGE, re.M | re.S), strict=False)
)


@pytest.mark.parametrize(
    ("title", "changes"),
    [
        ("PostgreSQL, keyed by the primary key", postgres()),
        ("MySQL, keyed by the primary key", mysql()),
        ("Rows without a key of their own", postgres("order_no")),
        ("Rows without a key of their own", postgres()),
        ("Rows without a key of their own", mysql()),
    ],
)
def test_the_guides_settings_pass_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, title: str, changes: list[Change]
) -> None:
    (program,) = re.findall(r"^```python\n# cdc.py\n(.*?)^```$", PAGE, re.M | re.S)
    (tmp_path / "cdc.py").write_text(program)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "cdc", raising=False)
    settings = tomllib.loads(BLOCKS[title])
    # The connector was killed before it had noted how far it was: the second half comes again, and then all of it.
    half = changes[len(changes) // 2 :]
    verdicts = judged(tmp_path, settings, [*changes, *half, *changes])
    assert verdicts == ["fresh"] * len(changes) + ["duplicate"] * (len(half) + len(changes))


def test_a_tombstone_has_no_id_and_is_a_dead_letter(tmp_path: Path) -> None:
    settings = tomllib.loads(BLOCKS["PostgreSQL, keyed by the primary key"])
    stream = StreamSettings(input="in", output="out", dead_letters="dead", **settings)
    batch = fetched([Sent(b'{"id":4}', None)])
    _, reasons = reader_for(SequenceSource.parse(stream.sequence))(batch)
    read = computed_identity_reader(stream.identity)
    assert read is not None
    read(batch, reasons)
    assert [REASONS[reason] for reason in reasons] == ["identity-missing"]
