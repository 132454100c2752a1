"""Settings of a hosted Faust app: those of its own configuration, with an optional ratchet.toml on top."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from faust.auth import SASLCredentials, SSLCredentials

from kafka_ratchet.agents.topic import TopicOptions
from kafka_ratchet.app.settings import Settings, given, load
from kafka_ratchet.errors import SettingsError

CONFIG_NAME: Final = "ratchet.toml"
HAND_ON: Final = (
    "app",
    "bootstrap",
    "commit_interval_ms",
    "records_per_transaction",
    "transaction_timeout_ms",
    "session_timeout_ms",
    "num_standby_replicas",
)
"""Names of the settings that `write_for_commands` writes, apart from the streams."""


def bootstrap_of(urls: Any) -> str | None:
    """Return host:port[,host:port] from Faust's broker URLs; None if they name no host."""
    found = [url for url in (urls if isinstance(urls, list | tuple) else [urls]) if url.host]
    return ",".join(f"{f'[{url.host}]' if ':' in url.host else url.host}:{url.port or 9092}" for url in found) or None


def streams_of(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the name that ratchet.toml gives the stream of each topic, by topic."""
    streams = values.get("streams") or {}
    return {each["input"]: name for name, each in streams.items() if isinstance(each, dict) and "input" in each}


def judged_topics(values: Mapping[str, Any]) -> list[str]:
    """Return the topics that ratchet.toml deduplicates."""
    streams = values.get("streams") or {}
    return [
        each["input"]
        for each in streams.values()
        if isinstance(each, dict) and "input" in each and each.get("deduplicate") is not False
    ]


def settings_for(
    app: Any,
    inputs: Mapping[str, str],
    options: Mapping[str, TopicOptions],
    path: Path | None = None,
    given_too: Mapping[str, Any] | None = None,
) -> Settings:
    """Return the settings of a hosted app.

    Args:
        app: the Faust app
        inputs: input topic of each stream
        options: options of each topic, as Faust would create it.
        path: path of ratchet.toml, as for `load`
        given_too: settings of the command line

    Raises:
        SettingsError: ratchet.toml names another app, or a value is invalid.
    """
    conf, values = app.conf, given(path)
    name = conf.id
    if values.get("app", name) != name:
        raise SettingsError(
            f"app: ratchet.toml has {values['app']!r}, but the id of the Faust app is {name!r}. Remove app from "
            "ratchet.toml"
        )
    known = values.get("streams") or {}
    streams: dict[str, dict[str, Any]] = {}
    for stream, topic in inputs.items():
        own = options.get(topic, TopicOptions())
        defaults: dict[str, Any] = {
            "input": topic,
            "output": f"{name}-{stream}-out",
            "dead_letters": f"{name}-{stream}-dead-letters",
            "partitions": own.partitions or conf.topic_partitions,
            "replication": int(own.replication or conf.topic_replication_factor or 1),
        }
        if stream not in known:
            defaults["deduplicate"] = False
        streams[stream] = {key: value for key, value in defaults.items() if key not in known.get(stream, {})}
    overrides: dict[str, Any] = {"streams": streams, "app": name}
    if values.get("bootstrap") is None:
        overrides["bootstrap"] = bootstrap_of(conf.broker)
    if "state_folder" not in values:
        overrides["state_folder"] = Path(conf.datadir) / "ratchet"
    if "num_standby_replicas" not in values:
        overrides["num_standby_replicas"] = min(int(conf.table_standby_replicas), 32)
    if "kafka" not in values:
        overrides["kafka"] = client_options_of(conf)
    return load(path, **{**overrides, **(given_too or {})})


def client_options_of(conf: Any) -> dict[str, Any]:
    """Return Faust's credentials in librdkafka's names.

    Raises:
        SettingsError: librdkafka has no such kind of credentials.
    """
    found = conf.broker_credentials
    if found is None:
        return {}
    if isinstance(found, SASLCredentials) and found.ssl_context is None:
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": str(getattr(found.mechanism, "value", found.mechanism)),
            "sasl.username": found.username or "",
            "sasl.password": found.password or "",
        }
    kind = "an SSL context" if isinstance(found, SASLCredentials | SSLCredentials) else type(found).__name__
    raise SettingsError(
        f"broker_credentials: {kind} does not show which files it was made from. Write [kafka] in ratchet.toml: "
        "security.protocol, ssl.ca.location, sasl.* as docs/guide/security.md has them"
    )


def write_for_commands(settings: Settings, folder: Path) -> Path:
    """Write a settings file for `ratchet status`, `tables`, `why` and the page. Secrets are omitted."""
    lines = ["# Written by the worker at each start, for commands: ratchet status --config THIS FILE"]
    for name in HAND_ON:
        value = getattr(settings, name)
        if value is not None:
            lines.append(f"{name} = {_toml(value)}")
    for name, stream in settings.streams.items():
        lines.append(f"\n[streams.{name}]")
        for key in sorted(stream.model_fields_set | {"input", "output", "dead_letters"}):
            value = getattr(stream, key)
            if value is not None and key in type(stream).model_fields:
                lines.append(f"{key} = {_toml(value)}")
    path = folder / CONFIG_NAME
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text("\n".join(lines) + "\n", "utf-8")
    new.replace(path)
    return path


def _toml(value: Any) -> str:
    if isinstance(value, bool | int | float | str):
        return msgspec.json.encode(value).decode()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return msgspec.json.encode(str(value)).decode()
