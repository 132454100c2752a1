"""`ratchet verify --from SOURCE --to TARGET`: compares two topics or tables, the ends of any pipeline."""

from __future__ import annotations

import json as json_text
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kafka_ratchet.errors import RatchetError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafka_ratchet.app.compare.comparison import Comparison, Options
    from kafka_ratchet.app.settings import Settings

PIPELINE: Final = "Any pipeline"
"""Heading in the help text above the options of a comparison."""

LISTED: Final = 100
"""Maximum number of findings shown on a terminal, unless --sample is given."""


def _option(name: str, help: str, **more: Any) -> Any:
    return typer.Option(name, help=help, rich_help_panel=PIPELINE, **more)


From = Annotated[
    str | None,
    _option(
        "--from",
        "Topic or table that was written: kafka:TOPIC, postgresql://...?table=T, mysql://...?table=T, delta:PATH, "
        "iceberg:NAMESPACE.TABLE, duckdb:FILE?table=T, parquet:PATH, csv:PATH.",
        metavar="SOURCE",
    ),
]
To = Annotated[
    str | None,
    _option("--to", "Topic or table that must have the same records, written as for --from.", metavar="TARGET"),
]
By = Annotated[
    list[str] | None,
    _option(
        "--by",
        "Identity on both sides: field:id=id, header:NAME=COLUMN, key=COLUMN, or one name for both. Several together "
        "are one identity.",
        metavar="KEY",
    ),
]
Compare = Annotated[
    list[str] | None,
    _option("--compare", "Values to compare as well: COLUMN,... or SOURCE=TARGET,...", metavar="COLUMN,..."),
]
Since = Annotated[
    str | None,
    _option("--since", "Only records of the source from a time (ISO, ms, or 5m for five minutes ago) or offset on."),
]
Until = Annotated[str | None, _option("--until", "Only records of the source before a time or offset.")]
Grace = Annotated[
    str | None, _option("--grace", "Age up to which a missing record counts as in flight and not as lost, such as 5m.")
]
AsIs = Annotated[
    bool, _option("--as-is", "The target must have each identity as often as the source has. Default: exactly once.")
]
Sample = Annotated[int | None, _option("--sample", "Findings to list of each kind. All are counted.", metavar="N")]
Memory = Annotated[int | None, _option("--memory-mb", "Memory to use, in MB; the rest goes to temporary files.")]
Bootstrap = Annotated[
    str | None, _option("--bootstrap", "Kafka of the topics: host:port[,host:port]. Default: that of the settings.")
]
ValueFormat = Annotated[
    str | None,
    _option(
        "--value-format",
        "Format of topics' values: json (default), avro, protobuf, json-schema (by a registry), bytes.",
    ),
]
TargetFormat = Annotated[
    str | None, _option("--target-format", "Format of the target topic's values, if it differs from the source's.")
]
Registry = Annotated[str | None, _option("--schema-registry", "Address of the schema registry.", metavar="URL")]
RegistryOption = Annotated[
    list[str] | None,
    _option("--registry-option", "Option of the registry's client, in confluent-kafka's names.", metavar="NAME=VALUE"),
]
FromOption = Annotated[
    list[str] | None,
    _option("--from-option", "Option of the source's catalog or storage; repeat it.", metavar="NAME=VALUE"),
]
ToOption = Annotated[
    list[str] | None,
    _option("--to-option", "Option of the target's catalog or storage; repeat it.", metavar="NAME=VALUE"),
]
Catalog = Annotated[
    list[str] | None,
    _option(
        "--catalog",
        "Option of the Iceberg catalog of both sides, in pyiceberg's names, such as uri=...; path=FOLDER for a "
        "catalog that Ratchet's sink keeps there.",
        metavar="NAME=VALUE",
    ),
]
Timestamp = Annotated[
    str | None, _option("--timestamp", "Time column of a source that is a table, for --since, --until and --grace.")
]
Every = Annotated[
    str | None,
    _option(
        "--every",
        "Repeat the comparison at this interval, such as 10m. With --state, each one begins where the last one ended.",
    ),
]
MetricsPort = Annotated[
    int | None, _option("--metrics-port", "With --every: serve metrics for Prometheus on 127.0.0.1, at this port.")
]
MetricsHost = Annotated[str, _option("--metrics-host", "Address for --metrics-port.")]


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """Options of `ratchet verify --from SOURCE --to TARGET` as given on the command line."""

    source: str | None
    target: str | None
    by: Sequence[str]
    given: dict[str, Any]
    """Values of all further options of a comparison, by option name, such as --every."""

    @property
    def is_comparison(self) -> bool:
        """Return True if the command line asks to compare two addresses.

        Raises:
            SettingsError: options of a comparison are given, but not both addresses.
        """
        if self.source is not None and self.target is not None:
            return True
        others = [name for name, value in self.given.items() if value not in (None, False, (), [], "127.0.0.1")]
        if self.source is not None or self.target is not None or self.by or others:
            missing = "--to" if self.target is None and self.source is not None else "--from"
            raise SettingsError(
                f"{missing} is missing: a comparison of two topics or tables takes --from SOURCE --to TARGET --by KEY"
            )
        return False


def options_of(given: dict[str, Any], state: Path | None) -> Options:
    """Return the options of a comparison, from the values given on the command line.

    given: as in `CompareOptions`; state: folder of --state, or None

    Raises:
        SettingsError: an option NAME=VALUE has no equals sign.
    """
    from kafka_ratchet.app.compare.comparison import MEMORY_MB, SAMPLE, Options

    catalog = named(given["--catalog"], "--catalog")
    return Options(
        compare=given["--compare"] or (),
        since=given["--since"],
        until=given["--until"],
        grace=given["--grace"] or 0.0,
        as_is=given["--as-is"],
        timestamp=given["--timestamp"],
        sample=SAMPLE if given["--sample"] is None else given["--sample"],
        memory_mb=MEMORY_MB if given["--memory-mb"] is None else given["--memory-mb"],
        value_format=given["--value-format"] or "json",
        target_format=given["--target-format"],
        schema_registry=given["--schema-registry"],
        registry_options=named(given["--registry-option"], "--registry-option"),
        source_options=catalog | named(given["--from-option"], "--from-option"),
        target_options=catalog | named(given["--to-option"], "--to-option"),
        state=state,
    )


def named(texts: Sequence[str] | None, option: str) -> dict[str, str]:
    """Parse NAME=VALUE texts into a dict by name. option: name of the option with these texts, for the error.

    Raises:
        SettingsError: a text has no equals sign.
    """
    found = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise SettingsError(f"{option} {text!r}: write NAME=VALUE")
        found[name] = value
    return found


def run(asked: CompareOptions, settings: Settings, state: Path | None, *, json: bool) -> int:
    """Compare source and target, show the result, and return the exit code. json: print one line of JSON."""
    from kafka_ratchet.app.compare.comparison import Comparer

    if not asked.by:
        raise SettingsError("--by is missing. Name the identity in source and target, such as --by field:id=id")
    given = asked.given
    if given["--bootstrap"] is not None:
        settings = settings.model_copy(update={"bootstrap": given["--bootstrap"]})
    if given["--metrics-port"] is not None and given["--every"] is None:
        raise SettingsError(
            "--metrics-port works only with --every, because metrics are served while the command repeats the "
            "comparison. Add --every"
        )
    options = options_of(given, state)
    most = LISTED if given["--sample"] is None else options.sample

    def show(result: Comparison) -> None:
        _show(result, most, json=json)

    with Comparer(asked.source or "", asked.target or "", asked.by, options, settings) as comparer:
        if given["--every"] is None:
            with _progress() as moved:
                result = comparer.run(moved)
            show(result)
            return result.exit_code
        return _watch(comparer, given, show)


def _show(result: Comparison, most: int, *, json: bool) -> None:
    from kafka_ratchet.app.compare.comparison import lines

    if json:
        print(json_text.dumps(result.as_dict()), flush=True)
        return
    for line in lines(result, most):
        print(line)
    verdict = {0: "right", 1: "wrong", 3: "not all could be compared: nothing is wrong so far"}
    print(verdict[result.exit_code], flush=True)


@contextmanager
def _progress() -> Iterator[Any]:
    """Yield a function that shows the number of rows read so far; None without a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status("reading") as status:
        yield lambda address, rows: status.update(f"{address}: {rows:,} rows read")


def _watch(comparer: Any, given: dict[str, Any], show: Any) -> int:
    """Repeat the comparison until SIGINT or SIGTERM; return the exit code of the last one."""
    from kafka_ratchet.app.compare.bounds import seconds
    from kafka_ratchet.app.compare.watch import Gauges, watch

    gauges, every_s = None, seconds(given["--every"], "--every")
    if given["--metrics-port"] is not None:
        from prometheus_client import start_http_server

        gauges = Gauges(comparer.source, comparer.target, every_s)
        try:
            server, _ = start_http_server(given["--metrics-port"], given["--metrics-host"], gauges.registry)
        except OSError as error:
            raise SettingsError(
                f"--metrics-port {given['--metrics-port']}: metrics cannot be served on {given['--metrics-host']}: "
                f"{error}. Choose another port or --metrics-host, or port 0 for a free one"
            ) from None
        print(f"metrics: http://{given['--metrics-host']}:{server.server_port}/metrics", file=sys.stderr, flush=True)

    def shown(result: Comparison) -> None:
        if gauges is not None:
            gauges.show(result)
        show(result)

    def failed(error: RatchetError) -> None:
        if gauges is not None:
            gauges.fail()
        print(f"not compared: {error}", file=sys.stderr, flush=True)

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return watch(comparer, every_s, shown, failed, stop)
