"""The result table that the settings name, for those who look at it: verify, the page, `ratchet sink status`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import SecretStr

from kafka_ratchet.app.settings import Settings, SinkSettings, StreamSettings
from kafka_ratchet.errors import SetupError
from kafka_ratchet.spark_sink.errors import SinkError
from kafka_ratchet.spark_sink.job.plan import TopicPlanner
from kafka_ratchet.spark_sink.rows.avro.avro import avro_values
from kafka_ratchet.spark_sink.rows.pipeline import Recipe, function_transform, sql_transform
from kafka_ratchet.spark_sink.rows.write_mode import Shape
from kafka_ratchet.spark_sink.stores.open_store import Place, make_store
from kafka_ratchet.spark_sink.stores.store import ResultStore


def result_stream(settings: Settings, name: str | None = None) -> tuple[str, StreamSettings]:
    """The stream whose output is read into the table.

    Raises:
        SettingsError: the settings do not say which.
    """
    return settings.stream(name or settings.sink.stream)


def place_of(kept: SinkSettings) -> Place:
    """Where the results are."""
    return Place(
        kept.store,
        kept.path,
        kept.table,
        secret_of(kept.url) or "",
        secret_of(kept.password),
        secrets_of(kept.storage_options),
        secrets_of(kept.catalog),
    )


def recipe_of(kept: SinkSettings) -> Recipe:
    """What becomes of the records, as the job is told it.

    Raises:
        OptionRefused: the settings contradict each other, or name a function that is not there.
    """
    transform = None if kept.sql is None else sql_transform(kept.sql)
    if kept.transform is not None:
        transform = function_transform(kept.transform)
    avro = None if kept.avro_schema is None else avro_values(kept.avro_schema, kept.avro_id)
    return Recipe(kept.columns, Shape(kept.kind, kept.key, kept.sums), kept.rejects, transform, avro, kept.keep_value)


def kafka_options(settings: Settings) -> dict[str, str]:
    """Client options as librdkafka takes them: all text, and true as "true"."""
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in settings.kafka.items()}


def planner_of(bootstrap: str, settings: Settings, topic: str, timeout_s: float | None = None) -> TopicPlanner:
    """Asks Kafka about the topic that is read.

    Raises:
        KafkaUnavailable: the client refuses its options.
    """
    more = {} if timeout_s is None else {"timeout_s": timeout_s}
    return TopicPlanner(bootstrap, topic, kafka_options(settings), **more)


def store_of(kept: SinkSettings, topic: str, identity: int, recipe: Recipe | None = None) -> ResultStore:
    """The store, not opened.

    Args:
        kept: where the results are, and the job's name.
        topic: the topic the offsets belong to.
        identity: `TopicPlanner.identity()`.
        recipe: None: a plain one, which does for whoever looks at offsets only.

    Raises:
        OptionRefused: see `make_store`.
    """
    return make_store(place_of(kept), kept.name, topic, identity, recipe or Recipe())


@contextmanager
def said_as_ours() -> Iterator[None]:
    """The errors of spark_sink, which has a tree of its own, as one of ours."""
    try:
        yield
    except SinkError as error:
        raise SetupError(str(error)) from None


def secret_of(value: Any) -> str | None:
    """The text of a secret setting."""
    return None if value is None else str(value.get_secret_value())


def secrets_of(options: Mapping[str, SecretStr]) -> dict[str, str]:
    """The same of several."""
    return {name: value.get_secret_value() for name, value in options.items()}
