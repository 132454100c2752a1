"""Addresses, passwords and keys of Kafka, store and schema registry.

They are in environment variables, because other users can read a command line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.secrets import keep, of_client, of_registry
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.registry import store_class

CLIENT_VARIABLE = "SPARK_SINK_KAFKA_OPTIONS"
READER_VARIABLE = "SPARK_SINK_SPARK_KAFKA_OPTIONS"
URL_VARIABLE = "SPARK_SINK_URL"
PASSWORD_VARIABLE = "SPARK_SINK_PASSWORD"  # noqa: S105
STORAGE_VARIABLE = "SPARK_SINK_STORAGE_OPTIONS"
CATALOG_VARIABLE = "SPARK_SINK_CATALOG"
REGISTRY_VARIABLE = "SPARK_SINK_SCHEMA_REGISTRY"


@dataclass(frozen=True)
class Access:
    """Addresses, passwords and keys of Kafka, store and registry.

    They are passed between processes in environment variables.
    """

    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Client options in librdkafka's names."""
    spark_kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of Spark's Kafka client in Java's names; they replace or complete the options translated from `kafka`."""
    url: str = field(default="", repr=False)
    """Url of the database of store postgres or mysql."""
    password: str | None = field(default=None, repr=False)
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of a bucket, see `bucket.OPTIONS`."""
    catalog: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Properties of the catalog of store iceberg."""
    registry: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of the schema registry's client, by its own names, including `url`. Empty: there is no registry."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Access:
        """Read the access data from environment variables.

        Raises:
            OptionRefused: a variable is not a JSON object.
        """
        return cls(
            _options(CLIENT_VARIABLE, environment),
            _options(READER_VARIABLE, environment),
            environment.get(URL_VARIABLE, ""),
            environment.get(PASSWORD_VARIABLE),
            _options(STORAGE_VARIABLE, environment),
            _options(CATALOG_VARIABLE, environment),
            _options(REGISTRY_VARIABLE, environment),
        )

    def as_environment(self) -> dict[str, str]:
        """Return the environment variables that give another process the same access."""
        options = {
            READER_VARIABLE: self.spark_kafka,
            STORAGE_VARIABLE: self.storage_options,
            CATALOG_VARIABLE: self.catalog,
            REGISTRY_VARIABLE: self.registry,
        }
        variables = {CLIENT_VARIABLE: json.dumps(dict(self.kafka))}
        variables |= {variable: json.dumps(dict(values)) for variable, values in options.items() if values}
        variables |= {URL_VARIABLE: self.url} if self.url else {}
        return variables | ({} if self.password is None else {PASSWORD_VARIABLE: self.password})

    def hide(self) -> None:
        """Hide the secret values of all fields in the output of this process; see `secrets.keep`."""
        keep([*of_client(self.kafka), *of_client(self.spark_kafka)])
        keep([self.url, self.password, *self.storage_options.values(), *self.catalog.values()])
        keep(of_registry(self.registry))

    def location(self, store: str, path: str, table: str) -> TableLocation:
        """Return the location of the results. A kind of store without a path ignores `path`.

        Raises:
            OptionRefused: the kind of store is unknown.
        """
        needed = path if store_class(store).needs_path else ""
        return TableLocation(store, needed, table, self.url, self.password, self.storage_options, self.catalog)


def _options(variable: str, environment: Mapping[str, str]) -> dict[str, str]:
    text = environment.get(variable, "")
    if not text:
        return {}
    try:
        options = json.loads(text)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise OptionRefused(f'{variable} is not a JSON object. Write it as {{"NAME": "VALUE"}}')
    return as_texts(options)


def as_texts(options: Mapping[str, object]) -> dict[str, str]:
    """Return options as Kafka's clients need them: all values as text, and JSON's true as "true"."""
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in options.items()}
