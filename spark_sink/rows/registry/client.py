"""Client of a schema registry, based on confluent-kafka's. Only the driver process makes requests.

A fault of one schema is `SchemaUnusable`, and values with that schema do not parse. A fault of the registry is
`RegistryUnavailable` or `RegistryRefused`, and no value is judged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit
from uuid import UUID

from kafka_ratchet.spark_sink.errors import OptionRefused, RegistryRefused, RegistryUnavailable, first_line

T = TypeVar("T")

TIMEOUT_S = 10.0
"""Default of option `timeout`: seconds to wait for one answer. By its own default, the client waits for ever."""

NUMBERS = frozenset(
    {"timeout", "max.retries", "retries.wait.ms", "retries.max.wait.ms", "cache.capacity", "cache.latest.ttl.sec"}
)
"""Options of the client with numbers as values; settings and environment have them as text."""

NOT_FOUND = frozenset({40401, 40402, 40403})
"""Error codes of the registry's API for a missing subject, version or schema. A 404 without such a code is from another
kind of server, or from a registry that does not know the request."""

MAX_ID = 2**31 - 1
"""Greatest id of a schema: registries count schemas in a signed number of 32 bits."""

MAX_REFERENCES = 1_000
"""Maximum number of schemas that one schema may need, itself included."""

READING = frozenset({"READ", "WRITEREAD"})
"""Modes of the rules of a schema (data contracts) that a deserializer would have to run."""


class SchemaUnusable(Exception):
    """Error for a missing or unusable schema; its message is the reason."""


@dataclass(frozen=True)
class Schema:
    """Schema with the schemas that it refers to."""

    kind: str
    """AVRO, PROTOBUF or JSON."""
    text: str
    """Text of the schema as JSON; for Protobuf a serialized FileDescriptorProto in base64."""
    references: Mapping[str, Schema] = field(default_factory=dict)
    """Schemas that this schema refers to, by the name that it uses for each."""

    def needed(self) -> Iterator[tuple[str, Schema]]:
        """Yield the schemas that this schema refers to, directly or not.

        Each name comes once, after its own references.
        """
        seen: dict[str, Schema] = {}

        def walk(schema: Schema) -> None:
            for name, each in schema.references.items():
                if name not in seen:
                    walk(each)
                    seen[name] = each

        walk(self)
        yield from seen.items()


class SchemaRegistry:
    """Schema registry with its options.

    Args:
        options: options of the client, by its own names, including `url`.

    Raises:
        OptionRefused: the client refuses the options.
        ModuleNotFoundError: the client is not installed; `missing_extra` gives the message.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        from confluent_kafka.schema_registry import SchemaRegistryClient

        if not options.get("url"):
            raise OptionRefused("a schema registry needs its address. Set sink.schema_registry")
        self.address = _address(options["url"])
        given = {"timeout": TIMEOUT_S, **{name: _option(name, text) for name, text in options.items()}}
        try:
            self._client = SchemaRegistryClient(given)
        except (ValueError, TypeError, OSError) as error:
            raise OptionRefused(f"schema registry {self.address}: {first_line(error)}. Correct its options") from None

    def schema(self, key: bytes, subject: str | None, kind: str) -> Schema:
        """Return the schema that values were written with.

        Args:
            key: the magic byte 0 and an id of four bytes, or the magic byte 1 and a GUID of sixteen.
            subject: any subject of the context that the ids belong to; None: the default context.
            kind: required kind of schema: AVRO, JSON or PROTOBUF.

        Raises:
            SchemaUnusable: the schema is missing, of another kind, or partly unreadable.
            RegistryUnavailable: the registry does not answer.
            RegistryRefused: the registry denies access.
        """
        form = _form(kind)
        if key[:1] == b"\1":
            guid = str(UUID(bytes=key[1:]))
            found = self._request(f"schema {guid}", lambda: self._by_guid(guid, form))
        else:
            number = int.from_bytes(key[1:], "big")
            if number > MAX_ID:
                raise SchemaUnusable(f"schema {number} is not in the registry: the greatest possible id is {MAX_ID}")
            found = self._request(f"schema {number}", lambda: self._client.get_schema(number, subject, form))
        return self._whole(found, kind)

    def latest(self, subject: str, kind: str) -> Schema:
        """Return the newest schema of a subject; raises as `schema` does."""
        found = self._request(f"subject {subject!r}", lambda: self._client.get_latest_version(subject, _form(kind)))
        return self._whole(found.schema, kind)

    def require_answer(self) -> None:
        """Request a list that every registry has, to test the connection; raises as `schema` does."""
        self._request("its types", self._client.get_schema_types)

    def _by_guid(self, guid: str, form: str | None) -> Any:
        """Request a schema by its GUID. Registries without GUIDs answer with a 404 without an error code."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            return self._client.get_schema_by_guid(guid, form)
        except SchemaRegistryError as error:
            if error.http_status_code != 404 or error.error_code in NOT_FOUND:
                raise
        self.require_answer()  # a server of another kind answers a 404 here too
        raise SchemaUnusable(f"schema {guid} is not in the registry, or the registry has no GUIDs")

    def _whole(self, found: Any, kind: str) -> Schema:
        left = [MAX_REFERENCES]

        def whole(schema: Any, within: tuple[str, ...]) -> Schema:
            left[0] -= 1
            if left[0] < 0:
                raise SchemaUnusable(f"it needs more than {MAX_REFERENCES} schemas, itself included")
            found_kind = (schema.schema_type or "AVRO").upper()
            if found_kind != kind:
                raise SchemaUnusable(f"it is {found_kind}, not {kind}")
            references = {}
            for each in schema.references or []:
                if each.name in within:
                    raise SchemaUnusable(f"{each.name} refers to itself")
                if kind == "PROTOBUF" and each.name.startswith(("google/", "confluent/")):
                    continue  # known to the deserializer
                name = f"version {each.version} of subject {each.subject!r}, which it refers to,"
                call = partial(self._client.get_version, each.subject, each.version, True, _form(kind))
                version = self._request(name, call)
                references[each.name] = whole(version.schema, (*within, each.name))
            return Schema(kind, schema.schema_str or "", references)

        if rules := _reading_rules(found):
            raise SchemaUnusable(
                f"its rules {', '.join(rules)} must run when values are read (for decryption, for example), which "
                "this job does not do"
            )
        return whole(found, ())

    def _request(self, what: str, ask: Callable[[], T]) -> T:
        from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError
        from httpx2 import HTTPError, InvalidURL

        try:
            return ask()
        except SchemaRegistryError as error:
            status, code, message = error.http_status_code, error.error_code, first_line(Exception(error.error_message))
            if code in NOT_FOUND:
                raise SchemaUnusable(f"{what} is not in the registry") from None
            if status in {401, 403, 407}:
                raise RegistryRefused(
                    f"schema registry {self.address}: the request for {what} was answered with HTTP {status} "
                    f"({message}). Correct sink.schema_registry_options (basic.auth.user.info, ...), or the rights in "
                    "the registry"
                ) from None
            raise RegistryUnavailable(
                f"schema registry {self.address}: the request for {what} was answered with HTTP {status} ({message}). "
                "The job waits; check the registry's log, and the path in sink.schema_registry"
            ) from None
        except (HTTPError, InvalidURL, OAuthTokenError, OSError) as error:
            raise RegistryUnavailable(
                f"schema registry {self.address} does not answer ({type(error).__name__}: {first_line(error)}). The "
                "job waits; start the registry, or correct sink.schema_registry"
            ) from None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise RegistryUnavailable(
                f"schema registry {self.address}: the answer to the request for {what} does not come from a schema "
                f"registry ({type(error).__name__}). Correct sink.schema_registry"
            ) from None


def _form(kind: str) -> str | None:
    """Return the format to request for a schema.

    Protobuf needs "serialized": the default format is the text of a .proto file, which only protoc can read.
    """
    return "serialized" if kind == "PROTOBUF" else None


def _reading_rules(schema: Any) -> list[str]:
    found = schema.rule_set
    if found is None:
        return []
    rules = [*(found.domain_rules or []), *(getattr(found, "encoding_rules", None) or [])]
    return [str(rule.name) for rule in rules if not rule.disabled and str(rule.mode) in READING]


def _option(name: str, text: str) -> object:
    if name == "ssl.ca.location" and text.lower() == "false":
        return False
    if name not in NUMBERS:
        return text
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        raise OptionRefused(f"schema registry: the value of option {name} must be a number") from None


def _address(urls: str) -> str:
    """Return the addresses without user and password."""
    shown = []
    for url in urls.split(","):
        try:
            parts = urlsplit(url.strip())
            shown.append(f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}")
        except ValueError:
            raise OptionRefused("sink.schema_registry is not an address. Write it as http://host:8081") from None
    return ",".join(shown)


def as_object(schema: Schema) -> Any:
    """Parse the schema's JSON.

    Raises:
        SchemaUnusable: the text is not JSON.
    """
    try:
        return json.loads(schema.text)
    except (ValueError, RecursionError):
        raise SchemaUnusable("its text is not JSON") from None
