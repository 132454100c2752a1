"""All settings of Ratchet, in one validated model; docs/reference/settings.md lists them.

They come from a TOML file (`--config FILE`, else `RATCHET_CONFIG`, else `ratchet.toml` in the working folder if there
is one), from `RATCHET_*` variables, which win over the file (`RATCHET_BOOTSTRAP`,
`RATCHET_STREAMS__EVENTS__IDENTITY`, ...), and from the command line, which wins over both.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings import SettingsError as UnreadableVariable

from kafka_ratchet.app.mistakes import PREFIX, no_such_setting, sentences, unreadable
from kafka_ratchet.app.repartition import judging, repartitioned
from kafka_ratchet.app.settings_sections import SinkSettings, StreamSettings, WebSettings
from kafka_ratchet.app.sinks import require_apart as sinks_apart
from kafka_ratchet.app.sinks import with_job_names
from kafka_ratchet.app.streams import require_apart as streams_apart
from kafka_ratchet.app.streams import require_not_our_own
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.spark_sink.log_lines import LogFormat
from kafka_ratchet.spark_sink.secrets import keep, of_client, of_registry

__all__ = [
    "CONFIG_VARIABLE",
    "OTHER_VARIABLES",
    "SECTIONS",
    "Settings",
    "SinkSettings",
    "StreamSettings",
    "WebSettings",
    "load",
]

CONFIG_VARIABLE = "RATCHET_CONFIG"
OTHER_VARIABLES = frozenset({CONFIG_VARIABLE, "RATCHET_READER_DSN", "RATCHET_HOME", "RATCHET_CACHE"})
"""RATCHET_* variables other than settings.

They are the path of the settings file, the database of `ratchet reader`, and folders of the `ratchet` script.
"""

BROKERS = re.compile(r"([\w.-]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}")
"""Pattern of one broker: host:port or [IPv6]:port. The port is required, since clients differ in their default."""

ADDRESSES = ("bootstrap.servers", "metadata.broker.list")
"""librdkafka's names of the brokers' addresses. Only librdkafka reads them, and the worker's client does not."""


def _joined(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str | int | bool]]:
    for name, option in table.items():
        if isinstance(option, dict):
            yield from _joined(option, f"{prefix}{name}.")
        elif isinstance(option, str | int):
            yield f"{prefix}{name}", option
        else:  # the value is not shown: it may be a secret
            raise ValueError(f"option {prefix + name!r} must be text, a whole number, true or false")


def _client_options(value: object) -> object:
    """Return client options by librdkafka's dotted names, from nested tables; another value unchanged.

    TOML parses `sasl.mechanism = "PLAIN"` as a table `sasl` with an entry `mechanism`.

    Raises:
        ValueError: an option names other brokers than `bootstrap`, so that parts of one command would use two clusters.
    """
    if not isinstance(value, dict):
        return value
    options = dict(_joined(value))
    for name in ADDRESSES:
        if name in options:
            raise ValueError(f"option {name!r} is not possible here. Remove it, and set bootstrap instead")
    return options


ClientOptions = Annotated[dict[str, str | int | bool], BeforeValidator(_client_options)]


class _Variables(EnvSettingsSource):
    """Reader of settings from `RATCHET_*` variables.

    It does not parse client options as JSON, since that would turn a password of digits into a number.
    """

    def explode_env_vars(self, field_name: str, field: FieldInfo, env_vars: Mapping[str, str | None]) -> dict[str, Any]:
        if field_name != "kafka":
            return super().explode_env_vars(field_name, field, env_vars)
        prefix = f"{PREFIX}KAFKA__".lower()
        options = {name[len(prefix) :]: text for name, text in env_vars.items() if name.startswith(prefix)}
        return {name.replace("__", "."): text for name, text in options.items()}


class Settings(BaseSettings):
    """Settings of Ratchet. `load()` makes them, and reports every mistake in an error text."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True, hide_input_in_errors=True
    )

    app: str = Field(default="ratchet", pattern=r"^[A-Za-z0-9._-]{1,100}$")
    """Name of the application: its consumer group, and prefix of its transactional ids and changelog topics."""
    bootstrap: str | None = None
    """Address of Kafka, host:port[,host:port]; None: commands start an embedded broker, or refuse to run."""
    kafka: ClientOptions = Field(default_factory=dict, repr=False)
    """Client options by librdkafka's names (security.protocol, sasl.*, ssl.*)."""
    kafka_timeout_s: float = Field(default=60.0, gt=0, le=1_000_000, allow_inf_nan=False)
    """Maximum seconds that a starting command or worker waits for Kafka before it ends with an error."""
    streams: dict[str, StreamSettings] = Field(default_factory=dict)
    deduplicate: bool | None = None
    """Value of `deduplicate` for streams that do not set it; None: True."""
    create_topics: bool = True
    """Value of `create_topics` for streams that do not set it. Ratchet creates its own topics in any case."""
    commit_interval_ms: int = Field(default=100, ge=1, le=30_000)
    """Age in ms at which a worker commits a partition's transaction; see also `records_per_transaction`."""
    records_per_transaction: int = Field(default=500_000, ge=1, le=100_000_000)
    """Number of input records at which a worker commits a partition's transaction, however young it is."""
    transaction_timeout_ms: int = Field(default=60_000, ge=1_000, le=900_000)
    """Age in ms at which the broker aborts an open transaction.

    The worker that takes over a crashed worker's partition aborts that partition's transaction at once.
    """
    session_timeout_ms: int = Field(default=10_000, ge=1_000, le=300_000)
    """Milliseconds without a heartbeat of a worker after which Kafka gives its partitions to other workers."""
    num_standby_replicas: int = Field(default=0, ge=0, le=32)
    """Number of other workers that keep an up-to-date copy of each partition's last sequences."""
    processes: int = Field(default=1, ge=1, le=256)
    """Number of processes of one `ratchet worker`.

    With 1, the command itself is the worker. With more, the command starts that many processes, each with its own
    folder in `state_folder`.
    """
    state_folder: Path = Path("ratchet-state")
    state_memory_mb: int = Field(default=2_048, ge=1, le=1 << 20)
    """Memory in MiB for the last sequences of one worker, shared by its processes, streams and partitions.

    Last sequences that do not fit are read from the local store, which is slower and gives the same results.
    """
    max_batch_mb: int = Field(default=64, ge=1, le=1_024)
    """Maximum number of MiB of one record batch after decompression; a partition with a larger batch halts.

    To forward a batch, a worker needs memory of at most three times the batch's size.
    """
    web: WebSettings = WebSettings()
    sink: SinkSettings = Field(default=SinkSettings(), repr=False)
    sinks: dict[str, SinkSettings] = Field(default_factory=dict, repr=False)
    """Sections [sinks.NAME] by name. Code for a single sink calls `of_sink`, and reads `sink` of its result."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: LogFormat = "text"
    """Form of log lines: text, or one JSON object a line."""
    telemetry: Literal["none", "otel"] = "none"
    """"otel": a worker exports an OpenTelemetry span for each transaction, as the `OTEL_*` variables say.

    It needs the extra `otel`.
    """

    @field_validator("bootstrap")
    @classmethod
    def _brokers(cls, value: str | None) -> str | None:
        if value is None:
            return None
        brokers = [broker.strip() for broker in value.split(",")]
        if not all(BROKERS.fullmatch(broker) for broker in brokers):
            raise ValueError("write host:port[,host:port], or remove bootstrap to use an embedded broker")
        return ",".join(brokers)

    @field_validator("state_folder", mode="before")
    @classmethod
    def _named_folder(cls, value: object) -> object:
        if value == "":
            raise ValueError("name a folder that no other program uses")
        return value

    @field_validator("streams")
    @classmethod
    def _names(cls, streams: dict[str, StreamSettings]) -> dict[str, StreamSettings]:
        streams_apart(streams)
        return streams

    @model_validator(mode="after")
    def _nothing_of_our_own(self) -> Settings:
        require_not_our_own(self.app, self.streams)
        return self

    @field_validator("sinks")
    @classmethod
    def _named_sinks(cls, sinks: dict[str, SinkSettings]) -> dict[str, SinkSettings]:
        return with_job_names(sinks)

    @model_validator(mode="after")
    def _sinks_apart(self) -> Settings:
        if self.sinks:
            if "sink" in self.model_fields_set and self.sink.name in self.sinks:
                raise ValueError(
                    f"[sink] and [sinks.{self.sink.name}] both have the name {self.sink.name!r}. Set another "
                    "sink.name, or rename the section"
                )
            sinks_apart(self.every_sink(), self._topic_of)
        return self

    def _topic_of(self, sink: SinkSettings) -> str | None:
        judged = judging(self.streams)
        name = sink.stream or (next(iter(judged)) if len(judged) == 1 else None)
        return self.streams[name].output if name in self.streams else name

    @model_validator(mode="after")
    def _commit_before_timeout(self) -> Settings:
        if self.commit_interval_ms * 3 > self.transaction_timeout_ms:
            raise ValueError(
                "transaction_timeout_ms must be at least three times commit_interval_ms, or the broker aborts "
                "healthy transactions"
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources of settings: arguments first, then variables; no .env file, no secrets folder.

        `load` reads the settings file itself and passes its values as arguments, after merging variables into them.
        """
        return init_settings, _Variables(settings_cls)

    def stream(self, name: str | None = None) -> tuple[str, StreamSettings]:
        """Return name and settings of a stream. name: None selects the only stream.

        Raises:
            SettingsError: no stream has the name; or no name is given, and the settings have no stream or several.
        """
        judged = judging(self.streams)
        if name is None and len(judged) == 1:
            return next(iter(judged.items()))
        known = ", ".join(self.streams) or "none"
        if name is None:
            raise SettingsError(f"the stream is not named. Give --stream NAME; the settings have the streams: {known}")
        if name not in self.streams:
            raise SettingsError(f"no stream {name!r} in the settings (they have: {known}). Correct the name")
        return name, self.streams[name]

    def every_sink(self) -> dict[str, SinkSettings]:
        """Return all sinks by name: `[sink]` first, by its job's name, then each `[sinks.NAME]` by its section's name.

        The result is empty if the settings have no sink section.
        """
        own = {self.sink.name: self.sink} if "sink" in self.model_fields_set else {}
        return {**own, **self.sinks}

    def of_sink(self, name: str | None = None) -> Settings:
        """Return the settings with one sink alone, in their field `sink`.

        Args:
            name: name of the section or of its job; None: `[sink]`, or the only sink.

        Raises:
            SettingsError: no sink has the name; or no name is given, and there are several sinks but no `[sink]`.
        """
        found = self.every_sink()
        if name is None and (not self.sinks or "sink" in self.model_fields_set):
            return self.model_copy(update={"sinks": {}}) if self.sinks else self
        if name is None and len(found) == 1:
            name = next(iter(found))
        known = ", ".join(found) or self.sink.name
        if name is None:
            raise SettingsError(f"the sink is not named. Give its name; the settings have the sinks: {known}")
        if not found and name == self.sink.name:
            return self
        for section, sink in found.items():
            if name in {section, sink.name}:
                return self.model_copy(update={"sink": sink, "sinks": {}})
        raise SettingsError(f"no sink {name!r} in the settings (they have: {known}). Correct the name")

    def require_streams(self) -> None:
        """Check that the settings have a stream.

        Raises:
            SettingsError: the settings have no stream.
        """
        if not self.streams:
            raise SettingsError(
                "the settings have no stream. Add a section [streams.NAME] with input, output and dead_letters"
            )

    def creates_topics(self, name: str) -> bool:
        """Return True if Ratchet may create missing topics of the stream `name`."""
        own = self.streams[name].create_topics
        return self.create_topics if own is None else own


SECTIONS: dict[str, type[BaseModel]] = {
    "streams": StreamSettings,
    "web": WebSettings,
    "sink": SinkSettings,
    "sinks": SinkSettings,
}


def load(path: Path | None = None, **overrides: Any) -> Settings:
    """Load the settings from the settings file and the environment variables.

    Args:
        path: the TOML file; None: `RATCHET_CONFIG`, else `ratchet.toml` in the working folder, else no file.
        overrides: settings from the command line, which override file and variables.

    Raises:
        SettingsError: the error text has one line for each mistake, with the setting and the remedy.
    """
    values = _read(path)
    _refuse_unknown_variables(os.environ)
    _refuse_second_sink(values, os.environ)
    try:
        settings = Settings(**_merged(_merged(values, _Variables(Settings)()), overrides))
    except ValidationError as error:
        raise SettingsError("\n".join(sentences(error, Settings, SECTIONS))) from None
    except UnreadableVariable as error:
        raise SettingsError(unreadable(error)) from None
    keep(_secrets(settings))
    return with_arrivals(settings)


def given(path: Path | None = None) -> dict[str, Any]:
    """Return the values of the settings file and the environment variables, not validated. path: as in `load`.

    Raises:
        SettingsError: the file or a variable cannot be read.
    """
    try:
        return _merged(_read(path), _Variables(Settings)())
    except UnreadableVariable as error:
        raise SettingsError(unreadable(error)) from None


def origins(path: Path | None = None, **overrides: Any) -> dict[str, str]:
    """Return the origin of each given setting, by its dotted name: variable, file or command line, as text.

    Args:
        path: settings file that `load` has accepted; None: as in `load`.
        overrides: as in `load`.
    """
    named = path or Path(os.environ.get(CONFIG_VARIABLE) or "ratchet.toml")
    variables = {
        name: f"variable {PREFIX}{name.upper().replace('.', '__')}" for name in _leaves(_Variables(Settings)())
    }
    return {
        **{name: f"file {named}" for name in _leaves(_read(path))},
        **variables,
        **{name: "command line" for name in _leaves(overrides)},
    }


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def with_arrivals(settings: Settings) -> Settings:
    """Return the settings, with each stream that sets `repartition_by` split in two; see `repartitioned`.

    Raises:
        SettingsError: see `repartitioned`.
    """
    return settings.model_copy(update={"streams": repartitioned(settings.app, settings.streams)})


def _secrets(settings: Settings) -> Iterator[str]:
    """Yield every secret value, to be hidden in messages, because libraries may quote them."""
    yield from of_client(settings.kafka)
    for kept in (settings.sink, *settings.sinks.values()):
        for secret in (kept.url, kept.password, *kept.storage_options.values(), *kept.catalog.values()):
            if secret is not None:
                yield secret.get_secret_value()
        registry = {name: value.get_secret_value() for name, value in kept.schema_registry_options.items()}
        if kept.schema_registry is not None:
            registry["url"] = kept.schema_registry.get_secret_value()
        yield from of_registry(registry)


def _merged(weak: Mapping[str, Any], strong: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(weak)
    for name, value in strong.items():
        known = both.get(name)
        both[name] = _merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return both


def _read(path: Path | None) -> dict[str, Any]:
    if path is None and (named := os.environ.get(CONFIG_VARIABLE)):
        path = Path(named)
    if path is None:
        path = Path("ratchet.toml")
        if not path.exists():
            return {}
    try:
        values = tomllib.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError:
        raise SettingsError(f"{path}: there is no such settings file. Correct --config or {CONFIG_VARIABLE}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not valid TOML: {error}") from None
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None
    for name in values:
        if name.startswith("_"):  # pydantic-settings would take such a name for an option of its own
            raise SettingsError(f"{name}: {no_such_setting(name, set(Settings.model_fields))}. Remove it from {path}")
    # Joined here already, so that a variable and a table of the file that mean one option meet under one name.
    if "kafka" in values:
        try:
            values["kafka"] = _client_options(values["kafka"])
        except ValueError as error:
            raise SettingsError(f"kafka: {error}") from None
    return values


def _refuse_unknown_variables(environment: Mapping[str, str]) -> None:
    fields = set(Settings.model_fields)
    for variable in sorted(environment):
        if not variable.startswith(PREFIX) or variable in OTHER_VARIABLES:
            continue
        name = variable[len(PREFIX) :].split("__")[0].lower()
        if name not in fields:
            raise SettingsError(f"{variable}: {no_such_setting(name, fields)}. Unset the variable or correct its name")


def _refuse_second_sink(values: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """Refuse variables of `[sink]` if the file has `[sinks.NAME]` alone.

    They would make a second sink with the default table, which commands without a name then take.

    Raises:
        SettingsError: there is such a variable.
    """
    sinks = values.get("sinks")
    if not isinstance(sinks, dict) or not sinks or "sink" in values:
        return
    own = f"{PREFIX}SINK__"
    for variable in sorted(environment):
        if variable.upper().startswith(own):
            name = min(sinks)
            meant = f"{PREFIX}SINKS__{name.upper()}__{variable[len(own) :].upper()}"
            raise SettingsError(
                f"{variable}: sets a sink without a name, but the settings file has [sinks.{name}] and no [sink]. "
                f"Name the sink, as in {meant}; or add a section [sink] to the file, if one is meant"
            )
