"""Tables of a Faust program over entries of another kind, such as those of a new version of it."""

from __future__ import annotations

from typing import Any

import faust
import pytest

from kafka_ratchet.app.faust_host.program import codec_of
from kafka_ratchet.app.faust_host.store import store_of
from kafka_ratchet.errors import TableError
from kafka_ratchet.tables.values.table import Table as OwnTable
from tests.tables.values.test_table import Kept

PLAIN, SETS, HOUR, MINUTE, HOPPING = range(5)
ENTRIES = {
    PLAIN: (b'"a"', b"3"),
    SETS: (b'"a"', b"[1,2]"),
    HOUR: (b'["a",[0.0,3599.9]]', b"3"),
    MINUTE: (b'["a",[0.0,59.9]]', b"3"),
}
FORMS = {
    PLAIN: "json of Faust by json",
    SETS: "sets of json of Faust by json",
    HOUR: "json of Faust by json, in windows of size 3600 s, step 3600 s",
    MINUTE: "json of Faust by json, in windows of size 60 s, step 60 s",
    HOPPING: "json of Faust by json, in windows of size 60 s, step 10 s",
}


def kept(kind: int) -> Kept:
    app = faust.App("kinds", broker="ratchet://127.0.0.1:9", store="ratchet://", autodiscover=False)
    table: Any = app.SetTable("t") if kind == SETS else app.Table("t", default=int)
    if kind in (HOUR, MINUTE):
        table.tumbling(3600 if kind == HOUR else 60)
    elif kind == HOPPING:
        table.hopping(60, 10)
    own = OwnTable("t", key_type=bytes, value_type=bytes)
    own.codec = codec_of(table, store_of(table))
    return Kept(own)


def written(kind: int, form: str = "") -> Kept:
    """A partition with an entry of a kind. form: as noted; "": as today."""
    before = kept(kind)
    if form:
        before.tables[0].codec._form = form  # type: ignore[attr-defined]
    before.partition.begin()
    key, value = ENTRIES[kind]
    before.partition.of("t").set(key, value)
    before.commit()
    before.save()
    return before


def begun(kind: int, before: Kept) -> Kept:
    after = kept(kind)
    after.store.update(before.store)
    after.partition.begin()
    return after


@pytest.mark.parametrize("before", ENTRIES)
@pytest.mark.parametrize("after", FORMS)
def test_entries_of_another_kind_are_refused(before: int, after: int) -> None:
    if before == after:
        begun(after, written(before))
        return
    with pytest.raises(TableError) as refused:
        begun(after, written(before))
    assert str(refused.value) == (
        f"table t: its entries were written as {FORMS[before]}, but the program declares {FORMS[after]}. Give the "
        "table a new name, so that it starts empty, or undo the change"
    )


@pytest.mark.parametrize("before", ENTRIES)
@pytest.mark.parametrize("after", [SETS, HOUR])
def test_entries_of_an_earlier_version_are_known_by_what_they_are(before: int, after: int) -> None:
    noted = written(before, FORMS[PLAIN])
    if before == after or (before, after) == (MINUTE, HOUR):  # 0.1.0 kept nothing about windows
        again = begun(after, noted)
        again.commit()
        again.save()
        assert FORMS[after].encode() in b"".join(again.store.values())
        return
    with pytest.raises(TableError, match="Give the table a new name"):
        begun(after, noted)
