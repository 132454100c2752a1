"""Keys of tables with and without orjson, with which Faust's JSON has other bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, datetime
from types import SimpleNamespace
from typing import Any

import faust
import pytest
from faust.stores.base import SerializedStore
from faust.utils.json import on_default

from kafka_ratchet.app.faust_host.moving import _latest
from kafka_ratchet.app.faust_host.program import codec_of
from kafka_ratchet.app.faust_host.store import LaneStore, store_of
from kafka_ratchet.errors import SettingsError, TableError
from kafka_ratchet.tables.values.table import Table as OwnTable
from tests.app.faust_host.test_exact_set import new_app
from tests.tables.values.test_table import Kept

PLAIN, WITH = "json of Faust by json", "json of Faust by orjson"
UTF_8, ESCAPED = '"José"'.encode(), b'"Jos\\u00e9"'


class Place(faust.Record, coerce=True):  # type: ignore[misc, call-arg]
    town: str
    day: date


def install(patch: pytest.MonkeyPatch) -> None:
    """Patch Faust's JSON into that with orjson, which Faust chooses when it is imported."""

    def default(value: Any) -> Any:
        return value.isoformat() if type(value) is date else on_default(value)

    def dumps(value: Any, **_: Any) -> bytes:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=default)
        return text.replace("e+", "e").encode()

    patch.setattr("faust.utils.json.orjson", SimpleNamespace())
    patch.setattr("faust.utils.json.dumps", dumps)


def remove(patch: pytest.MonkeyPatch) -> None:
    patch.undo()


def store(**options: Any) -> LaneStore:
    return store_of(new_app().Table("t", **options))


def kept(**options: Any) -> Kept:
    app = new_app()
    table: Any = app.SetTable("t") if options.pop("sets", False) else app.Table("t", **options)
    own = OwnTable("t", key_type=bytes, value_type=bytes)
    own.codec = codec_of(table, store_of(table))
    return Kept(own)


def written(*keys: bytes, value: bytes = b"3", form: str = "", **options: Any) -> Kept:
    before = kept(**options)
    if form:
        before.tables[0].codec._form = form  # type: ignore[attr-defined]
    before.partition.begin()
    for key in keys:
        before.partition.of("t").set(key, value)
    before.commit()
    before.save()
    return before


def begun(before: Kept, **options: Any) -> Kept:
    after = kept(**options)
    after.store.update(before.store)
    after.partition.begin()
    after.commit()
    after.save()
    return after


@pytest.mark.parametrize("with_orjson", [False, True])
@pytest.mark.parametrize(
    "key", ["José", ("José", (0.0, 1e16)), Place("Málaga", date(2026, 1, 2)), UTF_8, date(2026, 1, 2), 3, "a"]
)
def test_a_key_has_the_bytes_that_faust_writes(key: Any, with_orjson: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if with_orjson:
        install(monkeypatch)
    assert store()._encode_key(key) == SerializedStore._encode_key(store(), key)


@pytest.mark.parametrize(
    ("options", "plain", "with_orjson"),
    [
        ({}, PLAIN, WITH),
        ({"sets": True}, f"sets of {PLAIN}", f"sets of {WITH}"),
        ({"key_type": bytes}, "json of Faust by raw", "json of Faust by raw"),
    ],
)
def test_the_form_names_the_library_that_writes_keys(
    options: dict[str, Any], plain: str, with_orjson: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kept(**options).tables[0].codec.form == plain
    install(monkeypatch)
    assert kept(**options).tables[0].codec.form == with_orjson


REFUSED = (
    "table t: its entries were written as {before}, but the program declares {now}. Faust writes other bytes for a "
    "key with orjson than without it, and would not find the entries. {action} the worker's environment, or give "
    "the table a new name"
)


def refusal(before: Kept) -> str:
    with pytest.raises(TableError) as refused:
        begun(before)
    return str(refused.value)


def test_orjson_removed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    before = written(UTF_8)
    begun(before)
    remove(monkeypatch)
    assert refusal(before) == REFUSED.format(before=WITH, now=PLAIN, action="Install orjson into")


@pytest.mark.parametrize(
    "keys",
    [
        [ESCAPED],
        [b'"a"', b'[1e+16,"\\u00e9"]'],
        [b'["a","2026-01-02T00:00:00"]'],
        [UTF_8, ESCAPED],
    ],
)
def test_orjson_installed_is_refused(keys: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    before = written(*keys)
    begun(before)
    install(monkeypatch)
    assert refusal(before) == REFUSED.format(before=PLAIN, now=WITH, action="Remove orjson from")


@pytest.mark.parametrize(
    "keys",
    [
        [],
        [b'"a"', b"3", b"1.50", b"\xff"],
        [UTF_8],
        [b'["a","2026-01-02"]', b'"2026-01-02T00:00:01"'],
        [UTF_8, b'"2026-01-02T00:00:00"'],
        [b"1e16"],
    ],
)
@pytest.mark.parametrize("sets", [False, True])
def test_entries_that_an_earlier_version_wrote_with_orjson_are_found(
    keys: list[bytes], sets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch)
    after = begun(written(*keys, value=b"[3]", form=PLAIN, sets=sets), sets=sets)
    assert kept(sets=sets).tables[0].codec.form.encode() in b"".join(after.store.values())


def imported(*keys: bytes, **options: Any) -> list[bytes]:
    return list(_latest(store(**options), [(key, b"1") for key in keys]))


@pytest.mark.parametrize("key", [UTF_8, b'["a",1e16]', b'["a",0.000015]', '{"a":"é"}'.encode()])
def test_import_refuses_a_key_that_orjson_wrote(key: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match=r"^table t: Faust's changelog has the key b'.*Install orjson into this"):
        imported(b'"a"', key)
    assert _latest(store(), [(key, b"1"), (key, None)]) == {}
    install(monkeypatch)
    if b"0.000015" not in key:
        assert imported(key) == [key]


@pytest.mark.parametrize("key", [ESCAPED, b'["a",1e+16]'])
def test_import_refuses_a_key_written_without_orjson(key: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    assert imported(key) == [key]
    install(monkeypatch)
    with pytest.raises(SettingsError, match=r"or remove orjson if they had none\. Or give faust\.App another version="):
        imported(key)


@pytest.mark.parametrize("patch", [None, install])
def test_import_keeps_keys_of_the_program_and_dates(
    patch: Callable[[pytest.MonkeyPatch], None] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if patch is not None:
        patch(monkeypatch)
    keys = [b'"a"', b"1.50", b"1e3", b'{"a": 1}', b"\xff", b'["a","2026-01-02"]', b'["a","2026-01-02T00:00:00"]']
    assert imported(*keys) == keys
    assert imported(UTF_8, ESCAPED, key_type=bytes) == [UTF_8, ESCAPED]


def test_import_refuses_keys_of_models(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place("Málaga", date(2026, 1, 2))
    plain = store()._encode_key(place)
    assert imported(plain) == imported(plain, key_type=Place) == [plain]
    install(monkeypatch)
    with_orjson = store()._encode_key(place)
    for key_type in (Place, None):
        with pytest.raises(SettingsError):
            imported(plain, key_type=key_type)
        assert imported(with_orjson, key_type=key_type) == [with_orjson]


def test_times_at_midnight_are_the_same_with_both(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = store()._encode_key(datetime(2026, 1, 2))
    install(monkeypatch)
    assert store()._encode_key(datetime(2026, 1, 2)) == plain
