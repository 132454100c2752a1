"""What a registry may answer: which answers are about a schema, and which about the registry."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.schema_registry import Rule, RuleKind, RuleMode, RuleSet, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry import Schema as TheirSchema

from kafka_ratchet.spark_sink.errors import OptionRefused, RegistryRefused, RegistryUnavailable
from kafka_ratchet.spark_sink.job.access import Access
from kafka_ratchet.spark_sink.rows.registry.client import Schema, SchemaRegistry, SchemaUnusable
from kafka_ratchet.spark_sink.rows.registry.json_schema import columns_of, require_schema
from kafka_ratchet.spark_sink.secrets import hidden
from tests.spark_sink.schema_registries import OurRegistry

TEXT = json.dumps({"type": "record", "name": "r", "fields": []})


@pytest.fixture
def ours() -> Iterator[OurRegistry]:
    registry = OurRegistry()
    yield registry
    registry.stop()


def made(url: str, **options: str) -> SchemaRegistry:
    return SchemaRegistry({"url": url, "max.retries": "0", "timeout": "2", **options})


def key(number: int) -> bytes:
    return b"\0" + number.to_bytes(4, "big")


def test_schemas_are_asked_for_once_and_what_is_not_there_again(ours: OurRegistry) -> None:
    client = SchemaRegistryClient({"url": ours.url})
    number = client.register_schema("s", TheirSchema(TEXT, "AVRO"))
    registry = made(ours.url)
    ours.asked.clear()
    for _ in range(3):
        assert registry.schema(key(number), None, "AVRO") == Schema("AVRO", TEXT)
    with pytest.raises(SchemaUnusable, match="schema 2147483647 is not in the registry"):
        registry.schema(key(2**31 - 1), None, "AVRO")
    with pytest.raises(SchemaUnusable):
        registry.schema(key(2**31 - 1), ":.other:s", "AVRO")
    assert ours.asked == [
        f"/schemas/ids/{number}",
        "/schemas/ids/2147483647",
        "/schemas/ids/2147483647?subject=%3A.other%3As",
    ]
    with pytest.raises(SchemaUnusable, match="it is AVRO, not JSON"):
        registry.schema(key(number), None, "JSON")


def test_what_a_schema_refers_to_comes_with_it_and_rules_on_reading_are_not_run(ours: OurRegistry) -> None:
    client = SchemaRegistryClient({"url": ours.url})
    client.register_schema("a", TheirSchema(TEXT, "AVRO"))
    client.register_schema("b", TheirSchema(TEXT, "AVRO", [SchemaReference("a", "a", 1)]))
    number = client.register_schema(
        "c", TheirSchema(TEXT, "AVRO", [SchemaReference("b", "b", 1), SchemaReference("a", "a", 1)])
    )
    found = made(ours.url).schema(key(number), None, "AVRO")
    assert [name for name, _ in found.needed()] == ["a", "b"]
    lost = client.register_schema("d", TheirSchema(TEXT, "AVRO", [SchemaReference("x", "gone", 3)]))
    with pytest.raises(SchemaUnusable, match="version 3 of subject 'gone', which it refers to, is not in the registry"):
        made(ours.url).schema(key(lost), None, "AVRO")

    def ruled(mode: RuleMode) -> int:
        rule = Rule("secret", "", RuleKind.TRANSFORM, mode, "ENCRYPT", [], None, None, None, None, False)
        return int(client.register_schema(str(mode), TheirSchema(TEXT, "AVRO", rule_set=RuleSet([], [rule]))))

    assert made(ours.url).schema(key(ruled(RuleMode.WRITE)), None, "AVRO").kind == "AVRO"
    with pytest.raises(SchemaUnusable, match="its rules secret must run when values are read"):
        made(ours.url).schema(key(ruled(RuleMode.WRITEREAD)), None, "AVRO")


def test_answers_that_say_nothing_of_a_schema(ours: OurRegistry) -> None:
    registry = made(ours.url)
    for status in (500, 503, 429, 404, 422):
        ours.fails_with = status
        with pytest.raises(
            RegistryUnavailable, match=rf"request for schema 1 was answered with HTTP {status} \(it fails\)"
        ):
            registry.schema(key(1), None, "AVRO")
    ours.fails_with = 403
    with pytest.raises(RegistryRefused, match="HTTP 403"):
        registry.schema(key(1), None, "AVRO")
    ours.fails_with = None
    ours.credentials = "me:a long secret"
    with pytest.raises(RegistryRefused, match=r"HTTP 401 .*basic\.auth\.user\.info"):
        registry.schema(key(1), None, "AVRO")
    with pytest.raises(SchemaUnusable):
        made(ours.url, **{"basic.auth.user.info": "me:a long secret"}).schema(key(1), None, "AVRO")
    ours.stop()
    with pytest.raises(RegistryUnavailable, match=r"does not answer .ConnectError"):
        registry.schema(key(1), None, "AVRO")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(RegistryUnavailable, match=r"does not answer .ReadTimeout"):
            made(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout="0.2").latest("s", "AVRO")


def test_keys_that_a_registry_does_not_know_at_all(ours: OurRegistry) -> None:
    answer = ours.answer

    def older(target: str, body: Any) -> tuple[int, Any]:
        return (404, {"error_code": 404, "message": "Not Found"}) if "/guids/" in target else answer(target, body)

    ours.answer = older  # type: ignore[method-assign]
    registry = made(ours.url)
    with pytest.raises(SchemaUnusable, match="or the registry has no GUIDs"):
        registry.schema(b"\1" + b"sixteen bytes of", None, "AVRO")
    assert ours.asked == ["/schemas/types"]
    for number in (2**31, 2**32 - 1):
        with pytest.raises(SchemaUnusable, match="the greatest possible id is 2147483647"):
            registry.schema(key(number), None, "AVRO")
    assert ours.asked == ["/schemas/types"]
    ours.answer = lambda target, body: (404, {"error_code": 404, "message": "Not Found"})  # type: ignore[method-assign]
    with pytest.raises(RegistryUnavailable, match="check the registry's log, and the path"):
        registry.schema(b"\1" + b"sixteen bytes of", None, "AVRO")


def test_a_server_that_is_no_registry(ours: OurRegistry) -> None:
    ours.answer = lambda target, body: (200, ["nothing"])  # type: ignore[method-assign]
    with pytest.raises(RegistryUnavailable, match="does not come from a schema registry"):
        made(ours.url).schema(key(1), None, "AVRO")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"url": ""}, "needs its address"),
        ({"url": "localhost:8081"}, "Invalid url"),
        ({"no.such": "x"}, "Unrecognized properties: no.such"),
        ({"timeout": "soon"}, "option timeout must be a number"),
        ({"ssl.ca.location": "/no/such.pem"}, "No such file"),
        ({"basic.auth.user.info": "me"}, "must be in the form"),
    ],
)
def test_options_that_the_client_does_not_take(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionRefused, match=sentence):
        SchemaRegistry({"url": "http://127.0.0.1:1", **options})


def test_secrets_are_nowhere() -> None:
    address = "http://someone:the-password@127.0.0.1:1"
    access = Access(registry={"url": address, "basic.auth.user.info": "other:another-password"})
    assert "password" not in repr(access)
    access.hide()
    said = hidden(f"{address} another-password http://127.0.0.1:1/x")
    assert said == "*** *** http://127.0.0.1:1/x"
    assert SchemaRegistry({"url": address}).address == "http://127.0.0.1:1"


def test_columns_of_json_schema() -> None:
    schema = {
        "definitions": {"money": {"type": "object", "properties": {"cents": {"type": ["integer", "null"]}}}},
        "properties": {
            "a": {"$ref": "#/definitions/money"},
            "b": {"anyOf": [{"type": "null"}, {"type": "number"}]},
            "c": {"type": "array", "items": {"$ref": "other.json#/x"}},
            "d": {"type": ["string", "integer"]},
            "e": {"enum": ["A", 1]},
            "f": {"type": "object"},
            "g": {"$ref": "#/nowhere"},
            "h": {"oneOf": [{"type": "integer"}, {"type": "string"}]},
        },
    }
    found = columns_of(schema, {"other.json": {"x": {"type": "boolean"}}})
    assert found.simpleString() == (
        "struct<a:struct<cents:bigint>,b:double,c:array<boolean>,d:string,e:string,f:string,g:string,h:string>"
    )
    itself = {"properties": {"next": {"$ref": "#"}}}
    assert columns_of(itself, {}).simpleString() == "struct<next:string>"
    with pytest.raises(OptionRefused, match="no properties"):
        columns_of({"type": "string"}, {})
    with pytest.raises(SchemaUnusable):
        require_schema({"type": "nothing"})
