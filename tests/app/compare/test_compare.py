"""Comparison of topics with tables of each kind: seeded losses, doubles and alterations are all named."""

from __future__ import annotations

import json
import random
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, LiteralString
from urllib.parse import urlsplit

import psycopg
import pymysql
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from psycopg import sql

from faults.mariadb import find_mariadb, run_mariadb
from faults.postgres import run_postgres
from kafka_ratchet.app.cli import run as run_command
from kafka_ratchet.app.compare.comparison import Comparer, Options
from kafka_ratchet.errors import SettingsError, SourceError, TopicMissing
from kafka_ratchet.verify import assert_same, compare
from tests.app.compare.targets import FILES, Row, fill_mysql, fill_postgres

EVENTS = 400
CITIES = ("Graz", "Łódź", "O'Higgins", 'a "quoted" town', "")


def events() -> list[dict[str, Any]]:
    return [{"id": n, "city": CITIES[n % 5], "amount": n / 4, "nested": {"x": n}} for n in range(EVENTS)]


def seeded(seed: int) -> tuple[list[Row], dict[str, set[str]]]:
    """Rows with 7 losses, 11 doubles and 5 alterations, and the identities of each."""
    chosen = random.Random(seed).sample(range(EVENTS), 23)
    lost, doubled, altered = set(chosen[:7]), set(chosen[7:18]), set(chosen[18:])
    rows: list[Row] = []
    for event in events():
        number, amount = event["id"], Decimal(str(event["amount"]))
        if number in lost:
            continue
        rows.append((number, event["city"], amount + 1 if number in altered else amount))
        if number in doubled:
            rows.append(rows[-1])
    random.Random(seed).shuffle(rows)
    named = {"lost": lost, "doubled": doubled, "altered": altered}
    return rows, {kind: {str(each) for each in found} for kind, found in named.items()}


@pytest.fixture
def topic(broker: str, new_topic: Callable[..., str]) -> str:
    """A topic with each event, some of them twice: the source may hold repeats."""
    name = new_topic(3)
    produce(broker, name, [*events(), *events()[:50]])
    return name


def produce(broker: str, topic: str, values: Sequence[Any], **more: Any) -> None:
    producer = Producer({"bootstrap.servers": broker, "log_level": 0})
    for value in values:
        producer.produce(topic, json.dumps(value).encode(), str(value["id"]).encode(), **more)
    assert producer.flush(30) == 0


def found(result: Any) -> dict[str, set[str]]:
    kinds = ("lost", "doubled", "altered", "unexpected", "in_flight")
    return {
        kind: {each["identity"] for each in result.findings if each["finding"] == kind}
        for kind in kinds
        if any(each["finding"] == kind for each in result.findings)
    }


@pytest.mark.parametrize("kind", FILES)
def test_all_that_is_wrong_is_named(kind: str, broker: str, topic: str, tmp_path: Path) -> None:
    rows, wrong = seeded(list(FILES).index(kind) + 10)
    address, options = FILES[kind](tmp_path, rows)
    result = compare(f"kafka:{topic}", address, "field:id=id", "city,amount", bootstrap=broker, target_options=options)
    assert found(result) == wrong
    assert (result.lost, result.doubled, result.altered, result.unexpected) == (7, 11, 5, 0)
    assert result.exit_code == 1
    for each in result.findings:
        assert each["source"]["topic"] == topic
        assert len(each["target"]) == {"lost": 0, "doubled": 2, "altered": 1}[each["finding"]]
    altered = next(each for each in result.findings if each["finding"] == "altered")
    assert set(altered["values"]) == {"amount"}


@pytest.mark.parametrize("kind", FILES)
def test_a_right_table_is_right(kind: str, broker: str, topic: str, tmp_path: Path) -> None:
    rows = [(event["id"], event["city"], Decimal(str(event["amount"]))) for event in events()]
    address, options = FILES[kind](tmp_path, rows)
    # A CSV file cannot tell an empty text from null.
    columns = "amount" if kind == "csv" else "city,amount"
    result = compare(f"kafka:{topic}", address, "id", columns, bootstrap=broker, target_options=options)
    assert result.ok, result.findings
    assert result.exit_code == 0
    assert result.as_dict()["altered"] == 0


ODD: tuple[tuple[LiteralString, LiteralString, Any, str], ...] = (
    ("id", "uuid", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"),
    ("pad", "char(5)", "ab", "ab"),
    ("clock", "time", "10:11:12.500", "10:11:12.5"),
    ("midnight", "time", "24:00:00", "24:00:00"),
    ("at", "timestamptz", "2026-03-29T02:30:00+01:00", "2026-03-29T02:30:00+01:00"),
    ("never", "timestamptz", "infinity", "infinity"),
    ("far", "timestamp", "20000-01-02 00:00:00", "20000-01-02 00:00:00"),
    ("day", "date", "2026-01-02", "2026-01-02"),
    ("last", "date", "infinity", "infinity"),
    ("net", "inet", "10.0.0.1", "10.0.0.1"),
    ("numbers", "int4range", "[1,5)", "[1,5)"),
    ("exact", "numeric(38,10)", "12345678901234567890.0123456789", "12345678901234567890.0123456789"),
    ("close", "float8", 0.1, "0.1"),
    ("many", "int[]", [1, None], "{1,NULL}"),
    ("doc", "jsonb", {"b": [1, None], "a": "x"}, '{"a": "x", "b": [1, null]}'),
)
"""Name and type of a column, value in the topic, and literal for the table."""


def test_postgresql(broker: str, topic: str, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    rows, wrong = seeded(1)
    with run_postgres() as server:
        monkeypatch.setenv("PGPASSWORD", server.password)
        url = server.url
        with psycopg.connect(url) as connection:
            fill_postgres(connection, rows)
        separator = "&" if "?" in url else "?"
        target = f"{url}{separator}table=public.orders"
        result = compare(f"kafka:{topic}", target, "field:id=id", "city,amount", bootstrap=broker)
        assert found(result) == wrong
        same = compare(target, target, "id", "city,amount", as_is=True)
        assert same.ok
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("ALTER ROLE CURRENT_USER SET DateStyle = 'German'")
            connection.execute("ALTER ROLE CURRENT_USER SET extra_float_digits = -3")
            columns = sql.SQL(", ").join(sql.SQL(f"{name} {type_}") for name, type_, *_ in ODD)
            connection.execute(sql.SQL("CREATE TABLE odd ({})").format(columns))
            literals = sql.SQL(", ").join(sql.Literal(stored) for *_, stored in ODD)
            connection.execute(sql.SQL("INSERT INTO odd VALUES ({})").format(literals))
        name = new_topic(1)
        produce(broker, name, [{name: sent for name, _, sent, _ in ODD}])
        names = [each[0] for each in ODD]
        odd = f"{url}{separator}table=odd"
        for by in ("id", "pad", "at", "clock", "day"):
            result = compare(f"kafka:{name}", odd, by, names, bootstrap=broker)
            assert result.ok, result.findings
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE doc (id int, doc jsonb)")
            connection.execute("""INSERT INTO doc VALUES (1, '{"x": 0.1234567890123456789}'), (2, '"a"')""")
            connection.execute("CREATE TABLE hidden (id int)")
            connection.execute("INSERT INTO hidden VALUES (1), (2)")
            connection.execute("ALTER TABLE hidden ENABLE ROW LEVEL SECURITY")
            connection.execute("CREATE POLICY less ON hidden USING (id < 2)")
            connection.execute("CREATE ROLE reader LOGIN PASSWORD 'reader'")
            connection.execute("GRANT SELECT ON hidden TO reader")
        name = new_topic(1)
        producer = Producer({"bootstrap.servers": broker, "log_level": 0})
        for number, doc in ((1, '{"x": 0.1234567890123456789}'), (2, '"a"')):
            producer.produce(name, f'{{"id": {number}, "doc": {doc}}}'.encode())
        assert producer.flush(30) == 0
        result = compare(f"kafka:{name}", f"{url}{separator}table=doc", "id", "doc", bootstrap=broker)
        assert result.ok, result.findings
        parts = urlsplit(url)
        assert parts.netloc.endswith(f"@{parts.hostname}:{parts.port}")
        as_reader = parts._replace(netloc=f"reader:reader@{parts.hostname}:{parts.port}").geturl()
        with pytest.raises(SourceError, match="row-level security"):
            compare(f"{as_reader}{separator}table=hidden", f"{url}{separator}table=hidden", "id")
        with pytest.raises(SourceError, match="no_such"):
            compare(f"kafka:{topic}", f"{url}{separator}table=no_such", "id", bootstrap=broker)


UUID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"


@pytest.mark.skipif(find_mariadb() is None, reason="there is no MariaDB on this machine")
def test_mysql(broker: str, topic: str, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    rows, wrong = seeded(2)
    with run_mariadb() as server:
        monkeypatch.setenv("MYSQL_PWD", server.password)
        target = f"{server.url}{'&' if '?' in server.url else '?'}table=orders"
        parts = urlsplit(server.url)
        with pymysql.connect(
            host=parts.hostname,
            port=parts.port or 0,
            user=parts.username,
            password=server.password,
            database=parts.path[1:],
            charset="utf8mb4",
        ) as connection:
            fill_mysql(connection, rows)
            with connection.cursor() as cursor:
                cursor.execute("CREATE TABLE odd (id time(3), flag bit(1), bits bit(12), at datetime(6), doc json)")
                cursor.execute(
                    "INSERT INTO odd VALUES ('10:11:12.5', b'1', b'100000000001', '2026-01-02 03:04:05.25', '[1, 2]')"
                )
                cursor.execute("CREATE TABLE more (id char(5), uuid uuid, single float, text varchar(5), back time)")
                cursor.execute("INSERT INTO more VALUES ('ab', %s, 123456.789, 'ab ', '-01:30:00')", [UUID])
            connection.commit()
        result = compare(f"kafka:{topic}", target, "field:id=id", "city,amount", bootstrap=broker)
        assert found(result) == wrong
        name = new_topic(1)
        value = {"id": "10:11:12.500", "flag": True, "bits": 2049, "at": "2026-01-02T04:04:05.25+01:00", "doc": [1, 2]}
        produce(broker, name, [value])
        more = {"id": "ab ", "uuid": UUID.upper(), "single": 123456.789, "text": "ab ", "back": "-01:30:00"}
        other = new_topic(1)
        produce(broker, other, [more])
        for by in ("id", "uuid"):
            table = target.replace("table=orders", "table=more")
            result = compare(f"kafka:{other}", table, by, "single,text,back", bootstrap=broker)
            assert result.ok, result.findings
        odd = target.replace("table=orders", "table=odd")
        result = compare(f"kafka:{name}", odd, "id", "flag,bits,at,doc", bootstrap=broker)
        assert result.ok, result.findings


def test_topic_against_topic_by_header_and_key(broker: str, new_topic: Callable[..., str]) -> None:
    source, target = new_topic(2), new_topic(3)
    for name, values in ((source, events()[:20]), (target, events()[1:20] + events()[2:3])):
        for value in values:
            produce(broker, name, [value], headers=[("event-id", b"e%d" % value["id"])])
    by_header = compare(f"kafka:{source}", f"kafka:{target}", "header:event-id", "nested.x", bootstrap=broker)
    by_key = compare(f"kafka:{source}", f"kafka:{target}", ["key", "field:id"], bootstrap=broker)
    assert found(by_header) == {"lost": {"e0"}, "doubled": {"e2"}}
    assert found(by_key) == {"lost": {"0 / 0"}, "doubled": {"2 / 2"}}
    (lost,) = (each for each in by_header.findings if each["finding"] == "lost")
    assert lost["source"]["topic"] == source
    assert {"partition", "offset"} < set(lost["source"])


def test_repeats_of_the_source(broker: str, topic: str, tmp_path: Path) -> None:
    twice = [*events(), *events()[:50]]
    address, _ = FILES["parquet"](tmp_path, [(e["id"], e["city"], Decimal(str(e["amount"]))) for e in twice])
    once = compare(f"kafka:{topic}", address, "id", bootstrap=broker)
    assert (once.lost, once.doubled, once.exit_code) == (0, 50, 1)
    as_is = compare(f"kafka:{topic}", address, "id", bootstrap=broker, as_is=True)
    assert (as_is.lost, as_is.doubled, as_is.exit_code) == (0, 0, 0)
    (tmp_path / "less").mkdir()
    less, _ = FILES["parquet"](tmp_path / "less", [(e["id"], e["city"], Decimal(1)) for e in twice[:-3]])
    result = compare(f"kafka:{topic}", less, "id", bootstrap=broker, as_is=True)
    assert (result.lost, result.doubled) == (3, 0)


def test_grace_and_bounds(broker: str, new_topic: Callable[..., str], tmp_path: Path) -> None:
    topic, now = new_topic(1), round(time.time() * 1000)
    old, young = now - 3_600_000, now - 1_000
    produce(broker, topic, events()[:10], timestamp=old)
    produce(broker, topic, events()[10:20], timestamp=young)
    rows = [(e["id"], e["city"], Decimal(1)) for e in events()[1:19]]
    address, _ = FILES["csv"](tmp_path, rows)

    def by(**options: Any) -> tuple[int, int, int, int]:
        result = compare(f"kafka:{topic}", address, "id", bootstrap=broker, **options)
        return result.lost, result.in_flight, result.unexpected, result.exit_code

    assert by() == (2, 0, 0, 1)
    assert by(grace="5m") == (1, 1, 0, 1)
    assert by(since="10") == (1, 0, 0, 1)
    assert by(since="10m", grace="5m") == (0, 1, 0, 3)
    assert by(since="0:1", until="0:19") == (0, 0, 0, 0)
    assert by(until=str(now - 60_000)) == (1, 0, 0, 1)
    with pytest.raises(SettingsError, match="--since"):
        by(since="yesterday")


def test_records_behind_an_open_transaction_are_not_proven(
    broker: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(1)
    produce(broker, topic, events()[:5])
    address, _ = FILES["csv"](tmp_path, [(e["id"], e["city"], Decimal(1)) for e in events()[:5]])
    writer = Producer({"bootstrap.servers": broker, "transactional.id": uuid.uuid4().hex, "log_level": 0})
    writer.init_transactions(30)
    writer.begin_transaction()
    writer.produce(topic, json.dumps(events()[6]).encode())
    writer.flush(30)
    result = compare(f"kafka:{topic}", address, "id", bootstrap=broker)
    assert result.exit_code == 3
    assert "open transaction" in result.unread[0]
    writer.abort_transaction(30)
    assert AdminClient({"bootstrap.servers": broker}).list_topics(topic, timeout=30).topics[topic].error is None


def test_records_without_an_identity_are_counted(broker: str, new_topic: Callable[..., str], tmp_path: Path) -> None:
    topic = new_topic(1)
    produce(broker, topic, events()[:3])
    producer = Producer({"bootstrap.servers": broker})
    for value in (b"not JSON", b"[1]", None, b'{"id": null}', b'{"id": "\\ud800"}'):
        producer.produce(topic, value, b"k")
    producer.flush(30)
    address, _ = FILES["csv"](tmp_path, [(e["id"], e["city"], Decimal(1)) for e in events()[:3]])
    result = compare(f"kafka:{topic}", address, "id", bootstrap=broker)
    assert result.without_identity == {"source": 4, "target": 0}
    assert (result.lost, result.exit_code) == (1, 1)


def test_the_state_goes_on_where_it_ended(broker: str, new_topic: Callable[..., str], tmp_path: Path) -> None:
    topic = new_topic(2)
    produce(broker, topic, events()[:100])
    address, _ = FILES["csv"](tmp_path, [(e["id"], e["city"], Decimal(1)) for e in events()[:120]])
    options, settings = Options(state=tmp_path / "state"), _settings(broker)
    for _ in range(2):
        with Comparer(f"kafka:{topic}", address, "id", options, settings) as comparer:
            result = comparer.run()
            assert (result.source_rows, result.lost, result.unexpected) == (100, 0, 20)
    produce(broker, topic, events()[100:121])
    with Comparer(f"kafka:{topic}", address, "id", options, settings) as comparer:
        result = comparer.run()
    assert (result.source_rows, result.lost, result.unexpected) == (121, 1, 0)
    with pytest.raises(SettingsError, match="another comparison"):
        Comparer(f"kafka:{topic}", address, "key=id", options, settings)


def test_the_command(broker: str, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, _ = seeded(3)
    address, _ = FILES["parquet"](tmp_path, rows)
    asked = ["verify", "--from", f"kafka:{topic}", "--to", address, "--by", "field:id=id", "--bootstrap", broker]
    assert run_command([*asked, "--compare", "city,amount", "--json"]) == 1
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    counts = {name: last[name] for name in ("lost", "doubled", "altered", "unexpected", "in_flight")}
    assert counts == {"lost": 7, "doubled": 11, "altered": 5, "unexpected": 0, "in_flight": 0}
    assert len(last["findings"]) == 23
    assert run_command([*asked, "--sample", "2"]) == 1
    text = capsys.readouterr().out
    assert "lost 7, doubled 11, altered: not compared, unexpected 0, in flight 0" in text
    assert text.count("lost: ") == 2
    assert run_command([*asked, "--state", str(tmp_path / "no" / "folder")]) == 2
    assert "no folder for temporary files" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert run_command([*asked, "--every", "1s", "--metrics-port", port]) == 2
    assert f"--metrics-port {port}" in capsys.readouterr().err
    assert run_command([*asked[:-2], "--grace", "x"]) == 2
    assert "--grace 'x'" in capsys.readouterr().err
    assert run_command(["verify", "--from", f"kafka:{topic}"]) == 2
    assert "--to is missing" in capsys.readouterr().err


def test_a_missing_topic_and_column(broker: str, topic: str, tmp_path: Path) -> None:
    address, _ = FILES["csv"](tmp_path, seeded(4)[0])
    with pytest.raises(TopicMissing, match="no-such-topic"):
        compare("kafka:no-such-topic", address, "id", bootstrap=broker)
    with pytest.raises(SettingsError, match="its columns are id, city, amount"):
        compare(f"kafka:{topic}", address, "field:id=nope", bootstrap=broker)
    assert "no-such-topic" not in AdminClient({"bootstrap.servers": broker}).list_topics(timeout=30).topics


def test_assert_same(broker: str, topic: str, tmp_path: Path) -> None:
    (tmp_path / "right").mkdir()
    right, _ = FILES["parquet"](tmp_path / "right", [(e["id"], e["city"], Decimal(1)) for e in events()])
    assert_same(f"kafka:{topic}", right, by="id", bootstrap=broker)
    wrong, _ = FILES["parquet"](tmp_path, seeded(5)[0])
    with pytest.raises(AssertionError, match="lost 7, doubled 11"):
        assert_same(f"kafka:{topic}", wrong, by="id", bootstrap=broker)


def _settings(broker: str) -> Any:
    from kafka_ratchet.app.settings import Settings

    return Settings(bootstrap=broker)
