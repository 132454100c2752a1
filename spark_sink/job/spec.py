"""Description of a job, without its secrets, as one document.

Settings and command-line options both fill a `JobSpec`. `ratchet sink` passes it to the job as JSON in one option. The
page, `ratchet sink status` and verify use the same document, so that all of them refuse the same mistakes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any, Literal, cast, get_args

from kafka_ratchet.rule.identity import SequenceForm
from kafka_ratchet.rule.settings import DEFAULTS, SPARK, Late
from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.job.access import Access
from kafka_ratchet.spark_sink.job.control import START_WORDS, TopicPosition, read_place
from kafka_ratchet.spark_sink.job.reading import MAX_RECORDS, Job
from kafka_ratchet.spark_sink.log_lines import LogFormat
from kafka_ratchet.spark_sink.rows.avro.avro import AvroValues, avro_values
from kafka_ratchet.spark_sink.rows.infer import INFER
from kafka_ratchet.spark_sink.rows.judging.rule import JudgeRule, identity_parts
from kafka_ratchet.spark_sink.rows.partition_by import partition_fields
from kafka_ratchet.spark_sink.rows.pipeline import RowPipeline, Transform, function_transform, sql_transform
from kafka_ratchet.spark_sink.rows.registry.values import Framed, RegistryValues
from kafka_ratchet.spark_sink.rows.windows import RECORD_TIME, read_windows
from kafka_ratchet.spark_sink.rows.write_mode import Kind, WriteMode
from kafka_ratchet.spark_sink.spark.kafka_options import java_options
from kafka_ratchet.spark_sink.stores.decision import EARLIEST, LATEST, STORED
from kafka_ratchet.spark_sink.stores.evolution import Evolve
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.open_store import make_store
from kafka_ratchet.spark_sink.stores.registry import STORES, store_class
from kafka_ratchet.spark_sink.stores.store import ResultStore

Mode = Literal["batch", "stream", "structured", "replay"]
Format = Literal["json", "avro", "protobuf", "bytes"]

MAX_INTERVAL_S = 86_400
"""Longest interval in seconds: a day. For longer ones use a scheduler and the batch mode."""

MAX_PORT = 65_535


@dataclass(frozen=True, repr=False)
class JobSpec:
    """Description of a job: its topic, pipeline and result table, without secrets.

    Raises:
        OptionRefused: a value cannot be used, or two contradict each other.
    """

    bootstrap: str
    """Address of Kafka, host:port[,host:port]."""
    topic: str
    name: str
    """Name of the job; two jobs of one name fence each other."""
    store: str = "delta"
    """Kind of the store, a name in `registry.STORES`."""
    path: str = ""
    table: str = "results"
    mode: Mode = "batch"
    interval_s: float = 1.0
    """Seconds between two checks of the topic for new records; unused in mode batch."""
    state_is_lost: bool = False
    scratch: str | None = None
    """Folder of the throw-away checkpoint in mode structured."""
    format: Format | None = None
    """Format of the values; None: json if columns are given, avro if a schema is, else bytes."""
    columns: str | None = None
    avro_schema: str | None = None
    avro_id: int | None = None
    schema_registry: bool = False
    """True: each value names a schema of the registry in `Access`."""
    schema_subject: str | None = None
    """Subject of the columns, see `RegistryValues.subject`."""
    schema_record: str | None = None
    """Accepted record, see `RegistryValues.record`."""
    evolve: Evolve | None = None
    """Evolution: the job adds missing columns to the table, and widens types. None: the table must have the job's
    columns."""
    partition_by: tuple[str, ...] = ()
    """Partition columns of the table's files: names of columns, `day(column)`, `hour(column)`."""
    kind: Kind = "append"
    key: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
    averages: tuple[str, ...] = ()
    mins: tuple[str, ...] = ()
    maxes: tuple[str, ...] = ()
    distinct: tuple[str, ...] = ()
    window: str | None = None
    """Length of the windows of event time for totals, such as "1 hour". None: one total for all time."""
    slide: str | None = None
    """Time from the start of one window to the next. None: windows do not overlap."""
    time: str = RECORD_TIME
    """Column of the rows with the event time."""
    rejects: bool = False
    keep_value: bool = False
    sql: str | None = None
    transform: str | None = None
    """Function of the user as module:function."""
    max_records: int = MAX_RECORDS
    """Maximum offsets per commit."""
    from_input: bool = False
    """True: the topic is a raw one, and the job deduplicates it; records that the job cannot judge become rejects.
    False: workers have deduplicated the topic, and the job uses none of the five fields below."""
    identity: str = str(DEFAULTS["identity"])
    """Setting of the stream's deduplication, like the next four fields; see
    `kafka_ratchet.rule.settings.RuleSettings`."""
    sequence: str = str(DEFAULTS["sequence"])
    sequence_form: str = DEFAULTS["sequence_form"].value
    reorder_window: int = DEFAULTS["reorder_window"]
    late: Late = DEFAULTS["late"]
    other_topic: str | None = None
    """Topic with the same events: the workers' output for a job with `from_input`, otherwise their input. A job of
    another name that reads this topic into the table would add the same events once more."""
    start: str | None = None
    """Start of a first run, or of a replay: earliest, latest, a time, or offsets; None: the topic's beginning."""
    until: str | None = None
    """End of a run or a replay: a time, or partitions with offsets. A replay also accepts the word stored."""
    second_job: bool = False
    """True: start even if a job of another name has committed the topic to the table."""
    kafka_options: Mapping[str, str] = field(default_factory=dict)
    """Client options in librdkafka's names, which replace or complete the options of `Access`."""
    spark_kafka_options: Mapping[str, str] = field(default_factory=dict)
    jars: tuple[str, ...] = ()
    """Jars of Spark's Kafka connector; unused under spark-submit."""
    master: str = "local[*]"
    """Master url of Spark; unused under spark-submit."""
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    metrics_file: str | None = None
    """File for the metrics of a successful run in mode batch; unused in other modes."""
    log_format: LogFormat = "text"
    print_json: bool = False
    """True: print one line of JSON at the end."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if not _TYPES[str(each.type)](getattr(self, each.name)):
                raise OptionRefused(
                    f"{each.name}: expected {each.type}, not {type(getattr(self, each.name)).__name__}. Correct the "
                    "value"
                )
        self._require_known("store", STORES)
        self._require_known("mode", get_args(Mode))
        self._require_known("log_format", get_args(LogFormat))
        self._require_known("format", (None, *get_args(Format)))
        self._require_known("kind", get_args(Kind))
        self._require_known("evolve", (None, *get_args(Evolve)))
        self._require_known("sequence_form", tuple(SequenceForm))
        self._require_known("late", get_args(Late))
        self._require_within("interval_s", 0, MAX_INTERVAL_S)
        self._require_within("metrics_port", 0, MAX_PORT)
        self._require_within("max_records", 1, 2**63 - 1)
        self._require_values_of_format()
        self._require_rule_has_a_meaning()
        self._places()
        partition_fields(self.partition_by)
        more = self.averages or self.mins or self.maxes or self.distinct
        if self.evolve is not None and (more or self.window is not None):
            raise OptionRefused(
                "evolve adds columns that lack the values of earlier records, so that a minimum or an average "
                "would cover only a part of the records. Remove evolve, and use another table for other totals"
            )
        if self.window is None and (self.slide is not None or self.time != RECORD_TIME):
            raise OptionRefused(
                f"{('time' if self.slide is None else 'slide')} is an option of windows, but window is not set. Set "
                'window too, such as "1 hour"'
            )
        if self.sql is not None and self.transform is not None:
            raise OptionRefused(
                "sql and transform are both given, and each makes all rows of the result. Remove one of them"
            )

    def _places(self) -> tuple[TopicPosition | None, TopicPosition | None]:
        """Return the positions where the run begins and ends.

        Raises:
            OptionRefused: a position cannot be parsed, or the job does not support it.
        """
        if self.mode == "replay":
            if self.start is None or self.until is None:
                raise OptionRefused("a replay needs both ends of its range. Give --from and --to")
            return read_place("--from", self.start, EARLIEST), read_place("--to", self.until, STORED)
        start = None if self.start is None else read_place("--start", self.start, *START_WORDS)
        until = None if self.until is None else read_place("--until", self.until)
        if start is not None and self.from_input and start.text != EARLIEST:
            raise OptionRefused(
                f"{start}: a job with from_input recognises a duplicate by the records before it, so it always "
                "begins where the topic begins. Remove the option"
            )
        if start is not None and start.text == LATEST and self.columns == INFER:
            raise OptionRefused(
                f'{start}: the run would begin after all records, and columns = "{INFER}" needs one. Name the columns'
            )
        if until is not None and self.mode == "structured":
            raise OptionRefused(f"{until}: a query of Structured Streaming has no end. Choose mode batch or stream")
        return start, until

    def _require_known(self, name: str, known: Iterable[str | None]) -> None:
        if getattr(self, name) not in known:
            raise OptionRefused(
                f"{name} {getattr(self, name)!r} is unknown; write one of {', '.join(filter(None, known))}"
            )

    def _require_within(self, name: str, least: int, most: int) -> None:
        value = getattr(self, name)
        if value is not None and not least <= value <= most:
            raise OptionRefused(f"{name} {value} is out of range: write a number from {least} to {most}")

    def _require_values_of_format(self) -> None:
        if self.schema_registry:
            self._require_values_of_registry()
            return
        if self.schema_subject is not None or self.schema_record is not None:
            raise OptionRefused("schema_subject and schema_record need a schema registry. Set sink.schema_registry too")
        if self.format == "protobuf":
            raise OptionRefused("format protobuf needs a schema registry. Set sink.schema_registry")
        if self.format == "json" and self.columns is None:
            raise OptionRefused(f'format json needs columns. Write "user string, amount double", or "{INFER}"')
        if self.format == "avro" and self.avro_schema is None:
            raise OptionRefused("format avro needs a schema: give the path of an .avsc file, or its text")
        if self.format in {"bytes", "avro"} and self.columns is not None:
            raise OptionRefused(f"format {self.format} takes no columns. Remove columns, or choose format json")
        if self.format in {"bytes", "json"} and self.avro_schema is not None:
            raise OptionRefused(f"format {self.format} takes no Avro schema. Remove the schema, or choose format avro")
        if self.avro_schema is None and self.avro_id is not None:
            raise OptionRefused("avro_id needs the Avro schema as well. Set the schema too")

    def _require_values_of_registry(self) -> None:
        if self.format not in get_args(Framed):
            raise OptionRefused("values of a schema registry need a format: avro, protobuf or json")
        if self.avro_id is not None:
            raise OptionRefused("with a schema registry each value names its schema. Remove avro_id, or the registry")
        if self.avro_schema is not None and (self.format != "avro" or self.columns is not None):
            raise OptionRefused("format avro takes its columns from the Avro schema. Remove columns, or the schema")
        if self.from_input:
            raise OptionRefused(
                "from_input does not read values of a schema registry. Remove from_input, and let workers "
                "deduplicate the topic first"
            )
        if self.columns == INFER:
            raise OptionRefused("columns cannot be combined with a registry that gives the columns. Remove columns")
        if self.mode == "structured" and (self.sql is not None or self.transform is not None):
            raise OptionRefused(
                "mode structured cannot combine a schema registry with sql or transform: the registry's schemas are "
                "known only after the query has read records. Choose mode stream"
            )

    # -- between processes

    def as_json(self) -> str:
        """Return the description as a JSON document, which `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> JobSpec:
        """Read the JSON document written by `as_json`.

        Raises:
            OptionRefused: the text is not such a document; see also the class.
        """
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise OptionRefused("--job is not a JSON object. Write one with the keys bootstrap, topic and name")
        names = [each.name for each in fields(cls)]
        unknown = [name for name in found if name not in names]
        if unknown:
            raise OptionRefused(f"--job: the key {unknown[0]!r} is unknown; write one of {', '.join(names)}")
        missing = [name for name in ("bootstrap", "topic", "name") if name not in found]
        if missing:
            raise OptionRefused(f"--job: the key {missing[0]} is missing. Add it")
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in found.items()}
        return cls(**values)

    # -- parts of the job

    def pipeline(self, access: Access | None = None) -> RowPipeline:
        """Return the pipeline of the records.

        Args:
            access: access to a schema registry; None: the pipeline makes no requests to it.

        Raises:
            OptionRefused: options contradict each other, or name a missing function or file.
        """
        rejects, transform = self.rejects or self.from_input, self._transform()
        write_mode, takes_up, avro = self.write_mode(), self.evolve is not None, self._avro()
        if not self.schema_registry:
            return RowPipeline(self.columns, write_mode, rejects, transform, avro, self.keep_value, takes_up)
        columns = self.columns or INFER if avro is None else avro.columns
        registry = RegistryValues(
            cast(Framed, self.format),
            {} if access is None else access.registry,
            self.topic,
            self.schema_subject,
            self.schema_record,
            None if avro is None else avro.schema,
        )
        return RowPipeline(columns, write_mode, rejects, transform, None, self.keep_value, takes_up, registry)

    def write_mode(self) -> WriteMode:
        """Return kind, key, totals and, for a raw topic, deduplication settings of the result.

        Raises:
            OptionRefused: options contradict each other, or only workers support them.
        """
        windows = None if self.window is None else read_windows(self.window, self.slide, self.time)
        lists = self.averages, self.mins, self.maxes, self.distinct
        return WriteMode(self.kind, self.key, self.sums, windows, *lists, judged=self._rule())

    def _rule(self) -> JudgeRule | None:
        if not self.from_input:
            return None
        return JudgeRule(
            self.topic,
            identity_parts(self.identity),
            self.sequence,
            self.sequence_form,
            self.reorder_window,
            self.late,
        )

    def _require_rule_has_a_meaning(self) -> None:
        if not self.from_input:
            for each in fields(self):
                if each.name in SPARK and getattr(self, each.name) != each.default:
                    raise OptionRefused(
                        f"{each.name} sets how a raw topic is deduplicated, but from_input is not set, so that this "
                        f"topic's records count as deduplicated already. Set from_input, or remove {each.name}"
                    )
        if self.from_input and self.mode == "structured":
            raise OptionRefused(
                "from_input needs deduplication, and mode structured has none. With from_input, choose mode batch or "
                "mode stream"
            )

    def _transform(self) -> Transform | None:
        if self.sql is not None:
            return sql_transform(self.sql)
        return None if self.transform is None else function_transform(self.transform)

    def _avro(self) -> AvroValues | None:
        return None if self.avro_schema is None else avro_values(self.avro_schema, self.avro_id)

    def job(self, pipeline: RowPipeline, access: Access) -> Job:
        """Return the `Job` for reading by Spark, with this description's settings.

        Raises:
            OptionRefused: a client option has no translation for Spark.
        """
        start, until = self._places()
        client = {**access.kafka, **self.kafka_options}
        reader = java_options(client, {**access.spark_kafka, **self.spark_kafka_options})
        return Job(
            self.bootstrap,
            self.topic,
            self.name,
            pipeline,
            self.max_records,
            client,
            reader,
            self.second_job,
            partial(self._jobs_of_other_topic, access),
            splits=self._splits(pipeline, access),
            start=start,
            until=until,
        )

    def _splits(self, pipeline: RowPipeline, access: Access) -> bool:
        """Return True if several tasks may share a Kafka partition: without `transform` and deduplication."""
        is_plain = pipeline.transform is None and pipeline.write_mode.judged is None
        return is_plain and store_class(self.location(access).kind).splits

    def _jobs_of_other_topic(self, access: Access) -> list[str]:
        """Return the names of other jobs in the table that have committed records of `other_topic`."""
        if self.other_topic is None:
            return []
        beside = make_store(self.location(access), self.name, self.other_topic, 0, RowPipeline())
        try:
            return beside.other_jobs()
        finally:
            beside.close()

    def location(self, access: Access) -> TableLocation:
        """Return the location of the results."""
        return access.location(self.store, self.path, self.table)

    def result_store(self, pipeline: RowPipeline, access: Access, topic_id: int) -> ResultStore:
        """Create the store without opening it.

        Args:
            pipeline: result of `pipeline`; a default `RowPipeline` suffices to read offsets.
            access: access to the store.
            topic_id: result of `TopicPlanner.topic_id`; with 0 the topic's id is not compared.

        Raises:
            OptionRefused: see `make_store`.
        """
        return make_store(
            self.location(access),
            self.name,
            self.topic,
            topic_id,
            pipeline,
            evolve=self.evolve is not None,
            partition_by=partition_fields(self.partition_by),
        )


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_texts(value: Any) -> bool:
    return isinstance(value, tuple) and all(map(_is_text, value))


_TYPES: dict[str, Callable[[Any], bool]] = {
    "str": _is_text,
    "str | None": lambda value: value is None or _is_text(value),
    "int": _is_whole,
    "int | None": lambda value: value is None or _is_whole(value),
    "float": lambda value: _is_whole(value) or isinstance(value, float),
    "bool": lambda value: isinstance(value, bool),
    "tuple[str, ...]": _is_texts,
    "Mapping[str, str]": lambda value: isinstance(value, dict) and _is_texts((*value, *value.values())),
    "Mode": _is_text,
    "LogFormat": _is_text,
    "Kind": _is_text,
    "Late": _is_text,
    "Evolve | None": lambda value: value is None or _is_text(value),
    "Format | None": lambda value: value is None or _is_text(value),
}
"""Tests of a field's value, by the field's annotation. JSON may contain a value of another type."""
