"""Command line of the job: options, or one document, as a `JobSpec`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import get_args

from kafka_ratchet.rule.identity import SequenceForm
from kafka_ratchet.rule.settings import DEFAULTS, SETTINGS, Late
from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.job.access import (
    CATALOG_VARIABLE,
    CLIENT_VARIABLE,
    PASSWORD_VARIABLE,
    READER_VARIABLE,
    REGISTRY_VARIABLE,
    STORAGE_VARIABLE,
    URL_VARIABLE,
)
from kafka_ratchet.spark_sink.job.reading import MAX_RECORDS
from kafka_ratchet.spark_sink.job.spec import Format, JobSpec, Mode
from kafka_ratchet.spark_sink.log_lines import LogFormat
from kafka_ratchet.spark_sink.rows.infer import INFER
from kafka_ratchet.spark_sink.rows.windows import RECORD_TIME
from kafka_ratchet.spark_sink.rows.write_mode import Kind
from kafka_ratchet.spark_sink.stores.evolution import Evolve
from kafka_ratchet.spark_sink.stores.registry import STORES

DOCUMENT = "--job"
"""Option with a whole `JobSpec` as JSON; no other option may be given with it."""


def job_spec(words: Sequence[str]) -> JobSpec:
    """Return the job of a command line.

    Raises:
        OptionRefused: see `JobSpec`.
        SystemExit: argparse has printed why it cannot parse the command line.
    """
    if words and words[0].partition("=")[0] == DOCUMENT:
        text = words[0].partition("=")[2] or next(iter(words[1:2]), "")
        if len(words) > (1 if "=" in words[0] else 2):
            raise OptionRefused(f"{DOCUMENT} replaces all other options. Remove the other options")
        return JobSpec.from_json(text)
    options = vars(option_parser().parse_args(words))
    return JobSpec(
        **{
            **options,
            **{name: tuple(options[name]) for name in ("key", "sums", "averages", "mins", "maxes", "distinct")},
            "partition_by": tuple(options["partition_by"]),
            "jars": tuple(jar for jar in options["jars"].split(",") if jar),
            "kafka_options": _pairs("--kafka-option", options["kafka_options"]),
            "spark_kafka_options": _pairs("--spark-kafka-option", options["spark_kafka_options"]),
        }
    )


def add_location_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the location of the results."""
    parser.add_argument("--store", choices=tuple(STORES), default="delta", help="kind of the result table")
    parser.add_argument("--path", default="", help="folder or s3://bucket/folder (delta, iceberg), or file (duckdb)")
    parser.add_argument(
        "--table", default="results", help="name of the result table (postgres, mysql, duckdb, iceberg)"
    )


def option_parser() -> argparse.ArgumentParser:
    """Return the parser of the job's options, for spark-submit and for users."""
    parser = argparse.ArgumentParser(
        prog="spark_sink",
        description="Bring the committed records of a Kafka topic into a result table, each exactly once.",
        epilog="`vacuum` removes orphans of killed jobs, `compact` merges small files. "
        "`ratchet sink` starts a job with --job JSON in place of all options. Exit codes: 0 done, 2 refused with a "
        "sentence, 3 fenced by another job of the same name. Secrets belong into variables, because others can read "
        f"a command line: client options into {CLIENT_VARIABLE} and {READER_VARIABLE} (JSON objects), the database of "
        f"store postgres or mysql into {URL_VARIABLE} and its password, unless the url has it, into "
        f"{PASSWORD_VARIABLE}. Keys of a bucket belong into {STORAGE_VARIABLE} and the catalog of store iceberg into "
        f"{CATALOG_VARIABLE} (JSON objects); address and options of a schema registry into {REGISTRY_VARIABLE} (a "
        "JSON object with url and confluent-kafka's names).",
    )
    _add_run_options(parser)
    _add_judging_options(parser)
    _add_row_options(parser)
    _add_client_options(parser)
    return parser


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the topic, the location of the results, and the times."""
    parser.add_argument("--bootstrap", required=True, help="Kafka, host:port[,host:port]")
    parser.add_argument("--topic", required=True, help="the topic to read")
    add_location_options(parser)
    parser.add_argument("--name", required=True, help="name of the job; two jobs of one name fence each other")
    parser.add_argument(
        "--mode",
        choices=get_args(Mode),
        default="batch",
        help="batch: read up to the topic's present end; stream: run until SIGTERM; structured: the same as a query of "
        "Structured Streaming, with its operators for --sql and --transform; replay: replace the rows of the records "
        "from --start up to --until in one commit",
    )
    parser.add_argument(
        "--interval",
        dest="interval_s",
        type=float,
        default=1.0,
        metavar="S",
        help="stream, structured: seconds between two checks of the topic for new records",
    )
    parser.add_argument(
        "--start",
        metavar="PLACE",
        help="start of the first run: earliest, latest, a time (2026-11-28T09:00:00Z, or ms since 1970) or "
        "PARTITION:OFFSET,...",
    )
    parser.add_argument(
        "--until",
        metavar="PLACE",
        help="batch, stream: end of the run: a time, or PARTITION:OFFSET,... with every partition",
    )
    parser.add_argument(
        "--state-is-lost",
        action="store_true",
        help="structured: allow stateful operators; their state is discarded at every start",
    )
    parser.add_argument(
        "--second-job",
        action="store_true",
        help="start although a job of another name has committed the topic to the table; each record then has two rows",
    )
    parser.add_argument(
        "--other-topic",
        metavar="TOPIC",
        help="topic with the same records before or after the workers; if another job has committed it to the table, "
        "this job does not start",
    )
    parser.add_argument("--scratch", metavar="FOLDER", help="structured: folder for the throw-away checkpoint")


def _add_judging_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for a raw topic: how Spark deduplicates its records."""
    parser.add_argument(
        "--from-input",
        action="store_true",
        help="the topic is a raw one: leave duplicates out, and put records that cannot be judged into the rejects "
        "table",
    )
    rule = parser.add_argument
    rule("--identity", default=str(DEFAULTS["identity"]), help=_about("identity"))
    rule("--sequence", default=str(DEFAULTS["sequence"]), help=_about("sequence"))
    forms = [form.value for form in SequenceForm]
    rule("--sequence-form", choices=forms, default=DEFAULTS["sequence_form"].value, help=_about("sequence_form"))
    window = DEFAULTS["reorder_window"]
    rule("--reorder-window", type=int, default=window, metavar="N", help=_about("reorder_window"))
    rule("--late", choices=get_args(Late), default=DEFAULTS["late"], help=_about("late"))


def _about(name: str) -> str:
    return f"with --from-input: {SETTINGS[name].about}"


def _add_row_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the pipeline of the records."""
    parser.add_argument(
        "--format",
        choices=get_args(Format),
        help="format of the values; default: json with --columns, avro with --avro-schema, else bytes",
    )
    parser.add_argument(
        "--columns", help=f'fields of JSON values as Spark DDL, "user string, amount double"; or "{INFER}"'
    )
    parser.add_argument("--avro-schema", metavar="AVSC", help="schema of Avro values: its text, or a file with it")
    parser.add_argument(
        "--avro-id", type=int, metavar="N", help="id of the Avro schema in a registry, if each value begins with it"
    )
    parser.add_argument(
        "--schema-registry",
        action="store_true",
        help=f"each value names a schema of the registry in {REGISTRY_VARIABLE}; --format names the kind",
    )
    parser.add_argument(
        "--schema-subject", metavar="S", help="subject with the columns in its newest schema; default: TOPIC-value"
    )
    parser.add_argument("--schema-record", metavar="NAME", help="the only accepted record, message or title")
    parser.add_argument(
        "--evolve",
        choices=get_args(Evolve),
        help="add: add the job's missing columns to the table, and widen types where the store can",
    )
    parser.add_argument(
        "--partition-by",
        action="append",
        default=[],
        metavar="FIELD",
        help="delta, iceberg: divide the files by a column, day(COLUMN) or hour(COLUMN); repeat the option for several",
    )
    parser.add_argument(
        "--kind",
        choices=get_args(Kind),
        default="append",
        help="append: a row for each record; upsert: the last row of each key; totals: counts, sums, averages and so "
        "on of each key",
    )
    parser.add_argument("--key", action="append", default=[], metavar="COLUMN", help="upsert, totals: part of the key")
    parser.add_argument(
        "--sum", dest="sums", action="append", default=[], metavar="COLUMN", help="totals: a column to add up"
    )
    _add_totals_options(parser)
    parser.add_argument("--rejects", action="store_true", help="values that do not parse go to a table of their own")
    parser.add_argument(
        "--keep-value", action="store_true", help="keep _kafka_value of every record, even if its value parses"
    )
    parser.add_argument("--sql", help="query of the view `records` that makes the rows of the result")
    parser.add_argument(
        "--transform", metavar="MODULE:FUNCTION", help="function that makes the rows of the result from a DataFrame"
    )


def _add_totals_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for aggregates other than counts and sums."""
    for option, name, what in (
        ("--average", "averages", "to average; the table has its sum, its count and their quotient"),
        ("--min", "mins", "to keep the least value of"),
        ("--max", "maxes", "to keep the greatest value of"),
        ("--distinct", "distinct", "with distinct values to count: exact below 1,024 values, else an estimate"),
    ):
        parser.add_argument(
            option, dest=name, action="append", default=[], metavar="COLUMN", help=f"totals: a column {what}"
        )
    parser.add_argument(
        "--window", metavar="LENGTH", help='totals: length of the windows of event time, such as "1 hour"'
    )
    parser.add_argument(
        "--slide", metavar="LENGTH", help="totals: time from the start of one window to the next; default: LENGTH"
    )
    parser.add_argument(
        "--time", default=RECORD_TIME, metavar="COLUMN", help=f"column with the event time ({RECORD_TIME})"
    )


def _add_client_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for Kafka's clients, Spark, and the output of the run."""
    parser.add_argument("--max-records", type=int, default=MAX_RECORDS, metavar="N", help="offsets per commit, at most")
    parser.add_argument(
        "--kafka-option",
        dest="kafka_options",
        action="append",
        default=[],
        metavar="K=V",
        help="option of the Kafka client in the driver, by librdkafka's name",
    )
    parser.add_argument(
        "--spark-kafka-option",
        dest="spark_kafka_options",
        action="append",
        default=[],
        metavar="K=V",
        help="option of Spark's Kafka client, by Java's name",
    )
    parser.add_argument(
        "--jars", default="", help="jars of Spark's Kafka connector, comma-separated (not under spark-submit)"
    )
    parser.add_argument("--master", default="local[*]", help="Spark's master URL (not under spark-submit)")
    parser.add_argument(
        "--metrics-port", type=int, metavar="N", help="serve metrics for Prometheus during the run; 0: on a free port"
    )
    parser.add_argument("--metrics-host", default="127.0.0.1", metavar="H", help="address to serve them on")
    parser.add_argument("--metrics-file", metavar="F", help="write them to this file after a batch run (F.prom)")
    parser.add_argument(
        "--log-format", choices=get_args(LogFormat), default="text", help="log lines: text, or one JSON object a line"
    )
    parser.add_argument("--json", dest="print_json", action="store_true", help="print one line of JSON at the end")


def _pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise OptionRefused(f"{option} {name}: write the option as name=value")  # the value may be a secret
        pairs[name] = value
    return pairs
