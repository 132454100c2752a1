"""Result tables and Spark jobs as the settings describe them, for `ratchet sink`, `ratchet verify` and the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypedDict, Unpack

from pydantic import SecretStr

from kafka_ratchet.app.repartition import arrives_in, judging
from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.errors import SettingsError, SetupError
from kafka_ratchet.rule.settings import SPARK, Late
from kafka_ratchet.spark_sink.errors import SinkError
from kafka_ratchet.spark_sink.job.access import Access, as_texts
from kafka_ratchet.spark_sink.job.plan import TopicPlanner
from kafka_ratchet.spark_sink.job.spec import JobSpec, Mode
from kafka_ratchet.spark_sink.job.start import require_startable
from kafka_ratchet.spark_sink.rows.judging.rule import require_without
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.registry import store_class
from kafka_ratchet.spark_sink.stores.store import ResultStore


class Rule(TypedDict, total=False):
    """Deduplication settings of a job that reads a stream's input; see `JobSpec`."""

    from_input: bool
    identity: str
    sequence: str
    sequence_form: str
    reorder_window: int
    late: Late


class RunOptions(TypedDict, total=False):
    """Options of a single run of a job, which the settings do not have; see `JobSpec`."""

    mode: Mode
    interval_s: float
    state_is_lost: bool
    max_records: int
    start: str | None
    until: str | None
    second_job: bool
    print_json: bool


def result_stream(settings: Settings, name: str | None = None) -> tuple[str, StreamSettings]:
    """Return name and settings of the stream that the sink reads.

    Raises:
        SettingsError: the settings do not determine the stream; the message names the line to add.
    """
    if name is None and settings.sink.stream is None and (missing := missing_stream(settings)):
        raise SettingsError(missing)
    return settings.stream(name or settings.sink.stream)


def missing_stream(settings: Settings) -> str:
    """Return the message about a sink that sets no stream, in settings with several streams.

    The message is "" if the settings determine the sink's stream.
    """
    judged = list(judging(settings.streams))
    if len(judged) < 2 or all(each.stream is not None for each in settings.every_sink().values()):
        return ""
    return (
        f'say which stream (settings have: {", ".join(judged)}): by --stream, or add `stream = "{judged[0]}"`, or '
        "the name of another one, to [sink] (of a sink with a name: to [sinks.NAME])"
    )


def topic_of(settings: Settings, stream: StreamSettings) -> str:
    """Return the topic that the sink reads: the stream's output, or its input with `from_input`."""
    return stream.input if settings.sink.from_input else stream.output


def reading_input(settings: Settings, *, asked: bool) -> Settings:
    """Return the settings of one sink, with `from_input` set if the command line has that option (`asked`)."""
    if not asked:
        return settings
    return settings.model_copy(update={"sink": settings.sink.model_copy(update={"from_input": True})})


def rule_of(settings: Settings, topic: str) -> Rule:
    """Return the deduplication settings for Spark, of the stream with the input `topic`.

    Raises:
        OptionRefused: the stream has a setting that Spark does not support.
        SettingsError: no stream of the settings has that input.
    """
    name, stream = next(((name, each) for name, each in settings.streams.items() if each.input == topic), (None, None))
    if name is None or stream is None:
        raise SettingsError(
            f"from_input: no stream of the settings has the input {topic!r}. Add the stream, or remove from_input"
        )
    deduplicate = settings.deduplicate if stream.deduplicate is None else stream.deduplicate
    said = {
        "deduplicate = false": deduplicate is False,
        "forward = false": not stream.forward,
        f"duplicates = {stream.duplicates!r}": stream.duplicates is not None,
        **{f"{name} = {_shown(text)}": name not in SPARK for name, text in stream.judging.items()},
        "repartition_by": stream.repartition_by is not None or arrives_in(settings.streams, name) != topic,
        "max_identities": stream.max_identities is not None,
        "inactive_after_s": stream.inactive_after_s is not None,
    }
    require_without([what for what, there in said.items() if there])
    rule = stream.judged_by
    return {
        "from_input": True,
        "identity": str(rule.identity),
        "sequence": str(rule.sequence),
        "sequence_form": rule.sequence_form.value,
        "reorder_window": rule.reorder_window,
        "late": rule.late,
    }


def _shown(text: str) -> str:
    """Return a setting's value as it is written in the settings file."""
    return text.lower() if text in ("True", "False") else repr(text)


def sinks_of(settings: Settings, stream: str) -> list[Settings]:
    """Return a copy of the settings for each sink that reads the stream's output, with no other sink in it."""
    found = [settings.of_sink(name) for name in settings.every_sink()] or [settings]
    judged = judging(settings.streams)
    only = next(iter(judged)) if len(judged) == 1 else None
    return [each for each in found if (each.sink.stream or only) == stream]


def settings_for_results(settings: Settings, stream: str | None, sink: str | None) -> Settings:
    """Return the settings with one sink alone: the sink of the table to compare.

    Args:
        settings: settings with all sinks.
        stream: name of the stream of the table; None: the sink's stream.
        sink: name of the sink; None: `[sink]`, or the stream's only sink.

    Raises:
        SettingsError: the sink does not exist, or the settings do not determine it.
    """
    if sink is not None or stream is None or not settings.sinks:
        return settings.of_sink(sink)
    found = sinks_of(settings, stream)
    if len(found) == 1:
        return found[0]
    if not found:
        missing = missing_stream(settings)
        raise SettingsError(f"no sink of the settings reads stream {stream!r}" + (f"; {missing}" if missing else ""))
    names = [name for name, kept in settings.every_sink().items() if any(kept is each.sink for each in found)]
    raise SettingsError(
        f"stream {stream!r} is read into several tables. Name the sink: --sink {' or --sink '.join(names)}"
    )


def access_of(settings: Settings) -> Access:
    """Return addresses, passwords and keys of Kafka and the store, which must not be on a command line."""
    kept = settings.sink
    return Access(
        kafka_options(settings),
        {},
        secret_of(kept.url) or "",
        secret_of(kept.password),
        secrets_of(kept.storage_options),
        secrets_of(kept.catalog),
        _registry_of(settings),
    )


def _registry_of(settings: Settings) -> dict[str, str]:
    url = secret_of(settings.sink.schema_registry)
    return {} if url is None else {**secrets_of(settings.sink.schema_registry_options), "url": url}


def _subject_of(settings: Settings, topic: str) -> str | None:
    """Return the registry's subject for the schemas of the topic's values; None without a registry.

    It is named after the input of the stream that writes the topic.
    """
    if settings.sink.schema_registry is None or settings.sink.schema_subject is not None:
        return settings.sink.schema_subject
    inputs = {stream.output: stream.input for stream in settings.streams.values()}
    for _ in inputs:  # repartition_by has two streams in a row
        topic = inputs.get(topic, topic)
    return f"{topic}-value"


def place_of(settings: Settings) -> TableLocation:
    """Return the place of the result table: store, path or url, and table."""
    return access_of(settings).location(settings.sink.store, settings.sink.path, settings.sink.table)


def spec_of(settings: Settings, topic: str, bootstrap: str, **run_options: Unpack[RunOptions]) -> JobSpec:
    """Return the job's specification.

    Args:
        settings: settings with the `[sink]`.
        topic: the stream's topic to read, see `topic_of`.
        bootstrap: host:port[,host:port].
        run_options: options of a run beyond the settings.

    Raises:
        OptionRefused: the settings contradict each other; or, with `from_input`, they need a worker.
        SettingsError: see `rule_of`.
    """
    kept = settings.sink
    rule: Rule = rule_of(settings, topic) if kept.from_input else {}
    other_topic = next((s.output if kept.from_input else s.input for s in settings.streams.values()
                        if topic == (s.input if kept.from_input else s.output)), None)  # fmt: skip
    return JobSpec(
        bootstrap,
        topic,
        kept.name,
        kept.store,
        kept.path,
        kept.table,
        format=kept.format,
        columns=kept.columns,
        avro_schema=kept.avro_schema,
        avro_id=kept.avro_id,
        schema_registry=kept.schema_registry is not None,
        schema_subject=_subject_of(settings, topic),
        schema_record=kept.schema_record,
        evolve=kept.evolve,
        partition_by=kept.partition_by,
        kind=kept.kind,
        key=kept.key,
        sums=kept.sums,
        averages=kept.averages,
        mins=kept.mins,
        maxes=kept.maxes,
        distinct=kept.distinct,
        window=kept.window,
        slide=kept.slide,
        time=kept.time,
        rejects=kept.rejects,
        keep_value=kept.keep_value,
        sql=kept.sql,
        transform=kept.transform,
        metrics_port=kept.metrics_port,
        metrics_host=kept.metrics_host,
        metrics_file=kept.metrics_file,
        log_format=settings.log_format,
        other_topic=other_topic,
        **rule,
        **run_options,
    )


def kafka_options(settings: Settings) -> dict[str, str]:
    """Return the client options as librdkafka needs them, all as text."""
    return as_texts(settings.kafka)


def planner_of(bootstrap: str, settings: Settings, topic: str, timeout_s: float | None = None) -> TopicPlanner:
    """Return the planner, which reads the offsets of the job's topic.

    Raises:
        KafkaUnavailable: the client refuses its options.
    """
    more = {} if timeout_s is None else {"timeout_s": timeout_s}
    return TopicPlanner(bootstrap, topic, kafka_options(settings), **more)


def store_of(spec: JobSpec, access: Access, topic_id: int) -> ResultStore:
    """Return the store, to read the offsets in it. The user's `transform` is not imported.

    Args:
        spec: description of the job.
        access: addresses, passwords and keys.
        topic_id: `TopicPlanner.topic_id()`.

    Raises:
        OptionRefused: see `make_store`.
    """
    return spec.result_store(RowPipeline(), access, topic_id)


def require_startable_of(spec: JobSpec, access: Access, topic_id: int) -> None:
    """Raise an error if the job would refuse to start, as far as that shows without Spark.

    It does not check a job with `transform`, because it does not import the user's function.

    Args:
        spec: description of the job.
        access: addresses, passwords and keys.
        topic_id: `TopicPlanner.topic_id()`.

    Raises:
        SinkError: see `spark_sink.job.start.require_startable`.
    """
    if spec.transform is not None:
        return
    with suppress(ModuleNotFoundError):  # without Spark's package no job starts here
        pipeline = spec.pipeline(access)
        require_startable(spec.job(pipeline, access), spec.result_store(pipeline, access, topic_id))


@contextmanager
def sink_errors_translated() -> Iterator[None]:
    """Convert the errors of the job's own class tree into `SetupError`, while the block runs."""
    try:
        yield
    except SinkError as error:
        raise SetupError(str(error)) from None


def secret_of(value: Any) -> str | None:
    """Return the text of a secret setting; None if the setting is not set."""
    return None if value is None else str(value.get_secret_value())


def secrets_of(options: Mapping[str, SecretStr]) -> dict[str, str]:
    """Return the texts of several secret settings, by name."""
    return {name: value.get_secret_value() for name, value in options.items()}


SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class SinkCommit:
    """Commit in a result table.

    offsets_read: number of offsets since the previous commit, including markers and aborted records; None: the previous
    commit is unknown.
    rows, rejects, seconds: always None, because stores do not keep them; a running job serves them as metrics
    (`sink.metrics_port`).
    """

    name: str
    offsets: dict[int, int]
    offsets_read: int | None
    rows: int | None = None
    rejects: int | None = None
    seconds: float | None = None


def read_commits(settings: Settings, bootstrap: str, most: int = SHOWN) -> list[SinkCommit]:
    """Return the last `most` commits, the newest first; empty if the store keeps no list of commits.

    Raises:
        SettingsError: the settings do not determine the stream.
        SinkError: store or Kafka does not answer.
    """
    _, stream = result_stream(settings)
    topic = topic_of(settings, stream)
    spec = spec_of(settings, topic, bootstrap)
    planner = planner_of(bootstrap, settings, topic, settings.kafka_timeout_s)
    location = spec.location(access_of(settings))
    store = store_class(location.kind)(location, settings.sink.name, topic, planner.topic_id())
    try:
        found = [(name, dict(offsets)) for name, offsets in islice(store.commits(), most + 1)]
    finally:
        store.close()
    commits = []
    for number, (name, offsets) in enumerate(found[:most]):
        before = found[number + 1][1] if number + 1 < len(found) else None
        moved = None if before is None else sum(offsets.values()) - sum(before.values())
        commits.append(SinkCommit(name, offsets, moved))
    return commits
