"""`ratchet publish`: publishes files to a topic, under a producer's name."""

from __future__ import annotations

import json as json_text
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, cast

import typer

from kafka_ratchet.app.cli.options import Config, Json, Stream

if TYPE_CHECKING:
    from kafka_ratchet.app.settings import Settings
    from kafka_ratchet.producers import FileSet, FileSource, Producer, Published, StreamSource, TopicDecision
    from kafka_ratchet.producers.named import NamedProducer
    from kafka_ratchet.transport.publishing.producer import BatchProducer

PLAIN_EVERY_S = 5.0
"""Seconds between lines of progress, if there is no terminal for a progress bar."""

SHOW_EVERY_S = 0.1

WORTH_BYTES: Final = 8 << 20
"""Minimum size in bytes of a file sent in whole batches by default.

The code that sends batches takes half a second to load, which is too long for a smaller file.
"""


Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE...",
        help="NDJSON, CSV or text lines; plain, .gz or .zst. Several files in this order, a folder, or - (stdin).",
        show_default=False,
    ),
]
ProducerName = Annotated[str, typer.Option("--producer", help="Producer name. Progress is kept under this name.")]
Topic = Annotated[str | None, typer.Option("--topic", help="Topic to publish to. Default: the input of the stream.")]
Key = Annotated[str | None, typer.Option("--key", help="JSON field or CSV column with the record's key.")]
FormatName = Annotated[
    str | None, typer.Option("--format", help="ndjson, csv or lines. Default: by the file's name, else lines.")
]
SequenceField = Annotated[
    str | None,
    typer.Option("--sequence-field", help="JSON field or CSV column with the sequence, which must rise."),
]
Delimiter = Annotated[
    str | None,
    typer.Option("--delimiter", help="Character between the fields of CSV, or tab. Default: the comma."),
]
Follow = Annotated[
    bool,
    typer.Option(
        "--follow", help="Wait for more files in the folder, or lines in a rotated log, until SIGINT or SIGTERM."
    ),
]
FromStart = Annotated[
    bool, typer.Option("--from-start", help="Publish everything again; the worker drops the duplicates.")
]
TopicReplaced = Annotated[
    str | None,
    typer.Option(
        "--topic-replaced",
        help="If the topic was deleted and created again: send everything again, or continue after the last record.",
        metavar="resend|keep",
    ),
]
Rate = Annotated[float | None, typer.Option("--rate", min=0.001, help="Maximum records per second.")]
Partitions = Annotated[
    int | None,
    typer.Option(
        "--partitions", min=1, max=10_000, help="Create the topic with this many partitions if it does not exist."
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        min=0,
        max=65_535,
        help="Serve the producer's metrics at /metrics on this port; 0: a free one.",
    ),
]
Batches = Annotated[
    bool | None,
    typer.Option(
        "--batches/--no-batches",
        help="Send whole record batches of our own (needs the worker's extra), or each record by librdkafka. "
        "Default: batches where they can be, for a file of lines of 8 MiB or more.",
    ),
]
MetricsHost = Annotated[str, typer.Option("--metrics-host", help="Address for --metrics-port.")]


def publish(
    files: Files,
    producer: ProducerName,
    topic: Topic = None,
    key: Key = None,
    format: FormatName = None,
    sequence_field: SequenceField = None,
    delimiter: Delimiter = None,
    follow: Follow = False,
    from_start: FromStart = False,
    topic_replaced: TopicReplaced = None,
    rate: Rate = None,
    partitions: Partitions = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    batches: Batches = None,
    stream: Stream = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Publish files under a producer name. After a crash, run the command again: it continues where it stopped."""
    from kafka_ratchet.app.local.broker import bootstrap_of, choose_broker
    from kafka_ratchet.app.repartition import arrives_in
    from kafka_ratchet.app.settings import load
    from kafka_ratchet.errors import SettingsError
    from kafka_ratchet.producers import Producer

    decided = _topic_decision(topic_replaced)
    settings = load(config)
    bootstrap_of(settings)  # refused here: an embedded Kafka would be deleted with the published records
    if topic is None and stream is None and not settings.streams:
        raise SettingsError("the topic is not named, and the settings have no stream with an input. Give --topic NAME")
    if topic is None or stream is not None:  # a misspelled stream is refused with a topic too
        name = settings.stream(stream)[0]
        topic = topic or arrives_in(settings.streams, name)
    fields = _Fields(format, key, sequence_field, delimiter)
    source = _source(files, follow=follow, fields=fields)
    with choose_broker(settings) as bootstrap:
        options = {"bootstrap.servers": bootstrap, **settings.kafka}
        _ensure_topic(topic, settings, options, partitions, has_keys=key is not None)
        in_batches = _in_batches(source, options, rate, batches)
        with (
            _progress(source) as (moved, say),
            (_batch_producer() if in_batches else Producer)(
                topic,
                producer,
                options=options,
                source=source,
                from_start=from_start,
                topic_replaced=decided,
                timeout_s=settings.kafka_timeout_s,
                say=say,
            ) as sender,
            _metrics_served(sender, metrics_host, metrics_port, say),
        ):
            if sender.resumed_after >= 0 and not from_start:
                say(f"{source.label}: producer {producer!r} goes on after {source.place(sender.resumed_after)}")
            with _stopped_by_signals(source if follow else None):
                done = _published(source, sender, from_start=from_start, rate=rate, moved=moved)
    print(_as_json(done) if json else _summary(done, source.label, topic, producer), flush=True)


def _in_batches(
    source: FileSource | FileSet | StreamSource,
    options: dict[str, str | int | bool],
    rate: float | None,
    asked: bool | None,
) -> bool:
    """Return True if the source is to be sent in whole record batches, without librdkafka.

    asked: True or False: the user's choice; None: True for a large file.

    Raises:
        SettingsError: batches are requested, but impossible for this source.
    """
    from kafka_ratchet.errors import SettingsError
    from kafka_ratchet.producers import FileSource

    if asked is False:
        return False
    why = ""
    if not isinstance(source, FileSource) or source.blocks_of is None:
        why = "only one file of lines or NDJSON, with records numbered by their bytes, can be sent in batches"
    elif rate is not None:
        why = "--rate counts single records"
    elif asked is None and source.size_bytes < WORTH_BYTES:
        return False
    else:
        try:
            from kafka_ratchet.transport.publishing.options import understood

            understood(options)
        except ModuleNotFoundError:
            why = 'batches need the worker\'s packages: pip install "kafka-ratchet[worker]"'
        except SettingsError as error:
            why = str(error)
    if why and asked:
        raise SettingsError(f"--batches is not possible: {why}. Publish with --no-batches")
    return not why


def _batch_producer() -> type[BatchProducer]:
    from kafka_ratchet.transport.publishing.producer import BatchProducer

    return BatchProducer


def _published(
    source: FileSource | FileSet | StreamSource,
    sender: Producer | BatchProducer,
    *,
    from_start: bool,
    rate: float | None,
    moved: Callable[[int, int], None],
) -> Published:
    from kafka_ratchet.producers import FileSource, Producer, publish

    if isinstance(sender, Producer):
        return publish(
            source, sender, from_start=from_start, records_per_s=rate, on_record=lambda sequence: moved(sequence, 1)
        )
    from kafka_ratchet.transport.publishing.blocks import publish_blocks

    assert isinstance(source, FileSource)  # noqa: S101 - see `_in_batches`
    return publish_blocks(source, sender, from_start=from_start, on_records=moved)


def _as_json(done: Published) -> str:
    counts = {
        "published": done.published,
        "resumed_after": done.resumed_after,
        "last_sequence": done.last_sequence,
    }
    return json_text.dumps(counts)


def _summary(done: Published, label: str, topic: str, producer: str) -> str:
    if done.published:
        return (
            f"{label}: {done.published:,} records published to {topic} as {producer!r}, "
            f"last sequence {done.last_sequence}"
        )
    why = "it has no records" if done.last_sequence < 0 else "all of it was published before"
    return f"{label}: nothing to publish, {why}"


def _topic_decision(text: str | None) -> TopicDecision | None:
    from kafka_ratchet.errors import SettingsError

    if text not in (None, "resend", "keep"):
        raise SettingsError(f"--topic-replaced is {text!r}: write resend or keep")
    return cast("TopicDecision | None", text)


class _Fields(NamedTuple):
    """Options that determine how lines of a file become records."""

    format: str | None
    key: str | None
    sequence_field: str | None
    delimiter: str | None


def _source(files: list[Path], *, follow: bool, fields: _Fields) -> FileSource | FileSet | StreamSource:
    from kafka_ratchet.errors import SettingsError
    from kafka_ratchet.producers import StreamSource, open_files

    if Path("-") in files:
        if len(files) > 1 or follow:
            raise SettingsError(
                "standard input (-) cannot be combined with files or --follow. Remove -, or the files and --follow"
            )
        return StreamSource(sys.stdin.buffer, **fields._asdict())
    return open_files(files, follow=follow, **fields._asdict())


@contextmanager
def _metrics_served(
    sender: NamedProducer[Any], host: str, port: int | None, say: Callable[[str], None]
) -> Iterator[None]:
    """Serve the producer's metrics while the block runs. port: 0: a free port; None: serve nothing."""
    if port is None:
        yield
        return
    from prometheus_client import CollectorRegistry, start_http_server

    from kafka_ratchet.errors import SettingsError
    from kafka_ratchet.producers import ProducerCollector

    registry = CollectorRegistry()
    registry.register(ProducerCollector(sender))
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise SettingsError(
            f"--metrics-port {port}: metrics cannot be served on {host}: {error.strerror or error}. Choose another "
            "host or port, or port 0 for a free one"
        ) from None
    say(f"metrics at http://{host}:{server.server_port}/metrics")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def _stopped_by_signals(source: FileSource | FileSet | StreamSource | None) -> Iterator[None]:
    """End a source of several files (`FileSet`) at a signal while the block runs.

    The first SIGINT or SIGTERM ends the source, so that the command flushes its records and then ends. A second signal
    ends the process at once. For any other source, signals are left as they are.
    """
    from kafka_ratchet.producers import FileSet

    if not isinstance(source, FileSet):
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def stop(*_: object) -> None:
        restore()
        source.stop()

    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        restore()


def _ensure_topic(
    topic: str, settings: Settings, options: dict[str, str | int | bool], partitions: int | None, *, has_keys: bool
) -> None:
    """Create the topic if it does not exist.

    Raises:
        TopicMissing: the topic does not exist and must not be created.
        SettingsError: the topic is compacted and needs keys, but the records have none.
    """
    from kafka_ratchet.errors import SettingsError, TopicMissing
    from kafka_ratchet.producers import admin_client, create_topic, describe_topic
    from kafka_ratchet.producers.topics import cleanup_policy

    admin = admin_client(options)
    timeout_s = settings.kafka_timeout_s
    if describe_topic(admin, topic, timeout_s=timeout_s, say=_say) is not None:
        if not has_keys and "compact" in (policy := cleanup_policy(admin, topic, timeout_s=timeout_s) or ""):
            raise SettingsError(
                f"topic {topic!r} is compacted (cleanup.policy={policy}), and Kafka refuses records without a key "
                "there. Nothing was sent. Add --key FIELD, the JSON field or CSV column with the key, "
                "or publish to a topic with cleanup.policy=delete"
            )
        return
    name = next((name for name, stream in settings.streams.items() if stream.input == topic), None)
    configured = None if name is None else settings.streams[name]
    if name is not None and partitions is None and not settings.creates_topics(name):
        raise TopicMissing(
            f"topic {topic!r} does not exist, and create_topics is false. Correct the name in the settings or in "
            "--topic, create the topic, or give --partitions N to let this command create it"
        )
    wanted = partitions or (configured.partitions if configured else None)
    if wanted is None:
        raise TopicMissing(
            f"topic {topic!r} does not exist and is no stream's input in the settings. Create it, add a stream with "
            "this input to the settings, or give --partitions N to let this command create it"
        )
    replication = configured.replication if configured else -1  # -1: the broker's default
    create_topic(admin, topic, partitions=wanted, replication=replication, timeout_s=timeout_s, say=_say)
    _say(f"topic {topic} created with {wanted} partitions")


def _say(sentence: str) -> None:
    print(f"ratchet: {sentence}", file=sys.stderr, flush=True)


@contextmanager
def _progress(
    source: FileSource | FileSet | StreamSource,
) -> Iterator[tuple[Callable[[int, int], None], Callable[[str], None]]]:
    """Yield two functions: one to report progress, and one to print messages.

    On a terminal, progress is a bar over the file's bytes. Elsewhere it is a line every `PLAIN_EVERY_S` seconds.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    count, shown_at = 0, time.monotonic()
    if not console.is_terminal:

        def moved_plainly(sequence: int, records: int) -> None:
            nonlocal count, shown_at
            count += records
            if (records > 1 or count % 256 == 0) and time.monotonic() - shown_at >= PLAIN_EVERY_S:
                shown_at = time.monotonic()
                _say(f"{source.label}: {count:,} records, {source.place(sequence)}")

        yield moved_plainly, _say
        return

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TextColumn("{task.fields[records]:,} records"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(source.label, total=source.size_bytes, records=0)

        def moved(sequence: int, records: int) -> None:
            nonlocal count, shown_at
            count += records
            if time.monotonic() - shown_at >= SHOW_EVERY_S:
                shown_at = time.monotonic()
                bar.update(task, completed=source.position_bytes, total=source.size_bytes, records=count)

        def say_above(sentence: str) -> None:
            bar.console.print(f"ratchet: {sentence}", markup=False, highlight=False)

        yield moved, say_above
        bar.update(task, completed=source.position_bytes, total=source.position_bytes, records=count)
