"""Upgrading and rolling back: each of two versions reads the other's data."""

from __future__ import annotations

from pathlib import Path

from tests.upgrade.previous import ROOT, extract, run

WRITE = """
import json, sys
from pathlib import Path
import msgspec
from kafka_ratchet.producers.progress import Progress as Published
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores.stored_write_mode import write_mode_text
from kafka_ratchet.tables.policy_intervals import PolicyInterval
from kafka_ratchet.tables.store import Store
from kafka_ratchet.tables.totals import PROGRESS, Progress
from kafka_ratchet.transport.owner import Owner, Topic
from kafka_ratchet.transport.transactions.requests import offset_metadata

try:
    from kafka_ratchet.app.worker.claims import WriterClaim
    from kafka_ratchet.tables.totals import EvictedTotals
    from kafka_ratchet.transport.changelog import KnownPosition
except ImportError:  # names of the previous version
    from kafka_ratchet.app.worker.claims import Claim as WriterClaim
    from kafka_ratchet.tables.totals import Evicted as EvictedTotals
    from kafka_ratchet.transport.changelog import Sighting as KnownPosition

id = "A" * 22
owner = Owner("shop", "events", {"identity": "producer"}, {"input": Topic("in", id)})
store = Store(Path(sys.argv[1]))
entries = [(b"ia", (7).to_bytes(8, "big")), (PROGRESS, Progress(5, 4, 1, 0, 2).pack()), owner.pack()]
entries.append(PolicyInterval(0, True, 0, 5, 1, 0).pack())
store.write(entries, 9, 1, sighting=KnownPosition(9, 3))
store.close()
print(json.dumps({
    "claim": msgspec.json.encode(WriterClaim("shop", "events", "output", id)).decode(),
    "published": Published(7, 8, 1, id, None, 7, "here").encode().decode(),
    "kept": write_mode_text(WriteMode()),
    "evicted": EvictedTotals(1, 2).pack().hex(),
    "offset": offset_metadata(id, 3),
}))
"""

READ = """
import json, sys
from pathlib import Path
from kafka_ratchet.app.worker.claims import take_claim
from kafka_ratchet.producers.progress import Progress as Published
from kafka_ratchet.spark_sink.rows.write_mode import WriteMode
from kafka_ratchet.spark_sink.stores.stored_write_mode import require_write_mode
from kafka_ratchet.tables.store import Store
from kafka_ratchet.transport.transactions.requests import OURS
try:
    from kafka_ratchet.tables.totals import EvictedTotals
except ImportError:  # its name in the previous version
    from kafka_ratchet.tables.totals import Evicted as EvictedTotals

written, claims = json.loads(sys.argv[2]), {}
store = Store(Path(sys.argv[1]))
assert store.stands_for[:2] == (9, 1), store.stands_for
assert list(store.entries()) == [(b"ia", (7).to_bytes(8, "big"))]
assert store.progress[:5] == (5, 4, 1, 0, 2), store.progress
assert (store.owner.app, store.owner.topics["input"].name) == ("shop", "in")
assert len(store.intervals()) == 1 and store.sighting == (9, 3)
store.close()
take_claim(claims, b"out", written["claim"].encode(), 0)
assert claims["out"].app == "shop"
assert Published.decode(written["published"].encode(), "here").sequence == 7
require_write_mode("table", "job", written["kept"], WriteMode())
assert EvictedTotals.unpack(bytes.fromhex(written["evicted"])) == (1, 2)
assert OURS.fullmatch(written["offset"])
print("read")
"""


def test_each_version_reads_what_the_other_has_written(tmp_path: Path) -> None:
    previous = extract(tmp_path / "previous")
    for number, (writer, reader) in enumerate([(previous, ROOT), (ROOT, previous)]):
        store = tmp_path / str(number)
        written = run(writer, WRITE, store)
        assert run(reader, READ, store, written) == "read\n"
