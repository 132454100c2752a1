"""The job's own command line, for `python -m kafka_ratchet.spark_sink` and for spark-submit."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, get_args

from kafka_ratchet.spark_sink.errors import Fenced, OptionRefused, SinkError
from kafka_ratchet.spark_sink.extras import missing_extra
from kafka_ratchet.spark_sink.job.job import run_batch, run_stream
from kafka_ratchet.spark_sink.job.metrics import served, write_file
from kafka_ratchet.spark_sink.job.plan import TopicPlanner
from kafka_ratchet.spark_sink.job.reading import MAX_RECORDS, Job
from kafka_ratchet.spark_sink.job.run_state import Figures
from kafka_ratchet.spark_sink.job.structured import run_structured
from kafka_ratchet.spark_sink.owner import end_with_owner
from kafka_ratchet.spark_sink.rows.avro.avro import AvroValues, avro_values
from kafka_ratchet.spark_sink.rows.infer import INFER
from kafka_ratchet.spark_sink.rows.pipeline import Recipe, Transform, function_transform, sql_transform
from kafka_ratchet.spark_sink.rows.write_mode import Kind, Shape
from kafka_ratchet.spark_sink.secrets import HidingFormatter, hidden, hide_in_tracebacks, keep
from kafka_ratchet.spark_sink.spark.kafka_options import java_options
from kafka_ratchet.spark_sink.spark.session import spark_session, under_spark_submit
from kafka_ratchet.spark_sink.stores.open_store import STORE_KINDS, Place, make_store
from kafka_ratchet.spark_sink.stores.store import require_reach
from kafka_ratchet.spark_sink.vacuum_command import run_vacuum

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_INTERVAL_S = 86_400
"""A day. Longer intervals are a scheduler's, with the batch mode."""

FORMATS = ("json", "avro", "bytes")

MAX_PORT = 65_535

EXIT_OK = 0
EXIT_REFUSED = 2
"""Something the person can set right; the sentence is on standard error. argparse uses the same number."""
EXIT_FENCED = 3
"""Another job of the name has taken over: no mistake where jobs may overlap, so schedulers can tell it apart."""

CLIENT_VARIABLE = "SPARK_SINK_KAFKA_OPTIONS"
READER_VARIABLE = "SPARK_SINK_SPARK_KAFKA_OPTIONS"
URL_VARIABLE = "SPARK_SINK_URL"
PASSWORD_VARIABLE = "SPARK_SINK_PASSWORD"  # noqa: S105
STORAGE_VARIABLE = "SPARK_SINK_STORAGE_OPTIONS"
CATALOG_VARIABLE = "SPARK_SINK_CATALOG"

WORDS = frozenset({"client.id", "sasl.mechanism", "sasl.mechanisms", "sasl.username", "security.protocol"})
"""Client options whose values are words of every text: not looked for in what is written."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job; or, where the first word is `vacuum`, remove what killed ones have left.

    Args:
        arguments: the command line without the program's name; None: the process's own.

    Returns:
        The exit code: 0 done, 2 refused, 3 fenced.
    """
    end_with_owner()
    words = sys.argv[1:] if arguments is None else list(arguments)
    removing = words[:1] == ["vacuum"]
    options = argparse.Namespace() if removing else _parser().parse_args(words)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    hide_in_tracebacks()
    for handler in logging.getLogger().handlers:
        if handler.formatter is not None and not isinstance(handler.formatter, HidingFormatter):
            handler.setFormatter(HidingFormatter(handler.formatter))
    try:
        if removing:
            run_vacuum(words[1:], _place)
        else:
            _run(options)
    except Fenced as error:
        print(hidden(f"fenced: {error}"), file=sys.stderr)
        return EXIT_FENCED
    except SinkError as error:
        print(hidden(f"refused: {error}"), file=sys.stderr)
        return EXIT_REFUSED
    except ModuleNotFoundError as error:
        if (sentence := missing_extra(error)) is None:
            raise
        print(f"refused: {sentence}", file=sys.stderr)
        return EXIT_REFUSED
    return EXIT_OK


def _run(options: argparse.Namespace) -> None:
    client = _options_of_variable(CLIENT_VARIABLE) | _pairs("--kafka-option", options.kafka_option)
    keep(value for name, value in client.items() if name not in WORDS)
    reader = _options_of_variable(READER_VARIABLE) | _pairs("--spark-kafka-option", options.spark_kafka_option)
    recipe = Recipe(
        options.columns,
        Shape(options.kind, tuple(options.key), tuple(options.sum)),
        options.rejects,
        _transform(options),
        _avro(options),
        options.keep_value,
    )
    recipe.known_schema()  # refuses what is wrong with it before Kafka is asked, and Spark started
    job = Job(
        options.bootstrap,
        options.topic,
        options.name,
        recipe,
        options.max_records,
        client,
        java_options(client, reader),
    )
    place = _place(options)
    began = time.monotonic()
    make_store(place, job.name, job.topic, 0, recipe)  # refuses bad names and paths before Kafka is asked
    planner = TopicPlanner(job.bootstrap, job.topic, client)
    store = make_store(place, job.name, job.topic, planner.identity(), recipe)
    if not under_spark_submit():
        require_reach(store, options.master)
    jars = [jar for jar in options.jars.split(",") if jar]

    def session() -> AbstractContextManager[SparkSession]:
        return spark_session(f"sink-{job.name}", jars, options.master)

    figures = Figures()
    stop = Event()
    with served(figures, job.name, job.topic, options.metrics_host, options.metrics_port):
        if options.mode == "batch":
            outcome = run_batch(job, planner, store, session, figures)
        else:
            signal.signal(signal.SIGTERM, lambda *_: stop.set())
            if options.mode == "stream":
                outcome = run_stream(job, planner, store, session, options.interval, stop, figures)
            else:
                outcome = run_structured(
                    job,
                    planner,
                    store,
                    session,
                    options.interval,
                    stop,
                    figures,
                    state_is_lost=options.state_is_lost,
                    scratch=options.scratch,
                )
    figures.finish(figures.generation or store.generation(), outcome.offsets)
    seconds = time.monotonic() - began
    logging.getLogger("spark_sink").info(
        "%s %s: %d rows added in %d commits, %d rejects, %.1f s (%.1f s in commits, the longest %.2f s), "
        "generation %d, %d offsets left",
        place,
        "is up to date" if options.mode == "batch" else "was stopped after a commit",
        outcome.rows,
        outcome.commits,
        outcome.rejects,
        seconds,
        figures.commit_s,
        figures.longest_commit_s,
        figures.generation,
        sum(figures.lag.values()),
    )
    if options.metrics_file is not None:
        write_file(figures, job.name, job.topic, options.metrics_file)
    if options.json:
        print(json.dumps({**figures.as_dict(), "seconds": round(seconds, 3)}))


def _avro(options: argparse.Namespace) -> AvroValues | None:
    """Refuse what contradicts the format; without one, columns mean JSON, a schema means Avro, and neither bytes."""
    if options.format == "json" and options.columns is None:
        raise OptionRefused(f'format json needs columns. Write "user string, amount double", or "{INFER}"')
    if options.format == "avro" and options.avro_schema is None:
        raise OptionRefused("format avro needs a schema: give the path of an .avsc file, or its text")
    if options.format in {"bytes", "avro"} and options.columns is not None:
        raise OptionRefused(f"format {options.format} has no columns of yours. Leave them out, or choose json")
    if options.format in {"bytes", "json"} and options.avro_schema is not None:
        raise OptionRefused(f"format {options.format} has no Avro schema. Leave it out, or choose avro")
    if options.avro_schema is None:
        if options.avro_id is not None:
            raise OptionRefused("an id of an Avro schema goes with the schema itself. Give it too")
        return None
    return avro_values(options.avro_schema, options.avro_id)


def _place(options: argparse.Namespace) -> Place:
    place = Place(
        options.store,
        options.path,
        options.table,
        os.environ.get(URL_VARIABLE, ""),
        os.environ.get(PASSWORD_VARIABLE),
        _options_of_variable(STORAGE_VARIABLE),
        _options_of_variable(CATALOG_VARIABLE),
    )
    keep([place.url, place.password, *place.storage_options.values(), *place.catalog.values()])
    return place


def _transform(options: argparse.Namespace) -> Transform | None:
    if options.sql is not None and options.transform is not None:
        raise OptionRefused("give either --sql or --transform")
    if options.sql is not None:
        return sql_transform(options.sql)
    return None if options.transform is None else function_transform(options.transform)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="spark_sink",
        description="Bring the committed records of a Kafka topic into a result table, each exactly once.",
        epilog="`vacuum` removes what killed jobs have left. Exit codes: 0 done, 2 refused with a sentence, 3 fenced "
        "by another job of the same name. Secrets "
        f"belong into variables, because others can read a command line: client options into {CLIENT_VARIABLE} and "
        f"{READER_VARIABLE} (JSON objects), the database of store postgres into {URL_VARIABLE} and its password, where "
        f"that has none, into {PASSWORD_VARIABLE}; keys of a bucket into {STORAGE_VARIABLE} and the catalog of store "
        f"iceberg into {CATALOG_VARIABLE} (JSON objects).",
    )
    parser.add_argument("--bootstrap", required=True, help="Kafka, host:port[,host:port]")
    parser.add_argument("--topic", required=True, help="the topic to read")
    parser.add_argument("--store", choices=STORE_KINDS, default="delta", help="kind of the result table")
    parser.add_argument("--path", default="", help="folder or s3://bucket/folder (delta, iceberg), or file (duckdb)")
    parser.add_argument("--table", default="results", help="name of the result table (postgres, duckdb, iceberg)")
    parser.add_argument("--name", required=True, help="name of the job; two jobs of one name fence each other")
    parser.add_argument(
        "--mode",
        choices=["batch", "stream", "structured"],
        default="batch",
        help="batch: stop at the end as of the start; stream: go on until SIGTERM; structured: likewise, as a query of "
        "Structured Streaming, whose operators --sql and --transform may use",
    )
    parser.add_argument(
        "--interval",
        type=_seconds,
        default=1.0,
        metavar="S",
        help="stream, structured: seconds between two looks at the topic",
    )
    parser.add_argument(
        "--state-is-lost",
        action="store_true",
        help="structured: take operators that keep state, though every start begins without it",
    )
    parser.add_argument(
        "--scratch", type=Path, metavar="FOLDER", help="structured: where the throw-away checkpoint is made"
    )
    parser.add_argument("--format", choices=FORMATS, help="what values are; without it the next options say it")
    parser.add_argument(
        "--columns", help=f'fields of JSON values as Spark DDL, "user string, amount double"; or "{INFER}"'
    )
    parser.add_argument("--avro-schema", metavar="AVSC", help="schema of Avro values: its text, or a file with it")
    parser.add_argument(
        "--avro-id", type=int, metavar="N", help="its id in a schema registry, where values begin with that"
    )
    parser.add_argument(
        "--kind",
        choices=get_args(Kind),
        default="append",
        help="append: a row for each record; upsert: the last row of each key; totals: counts and sums of each key",
    )
    parser.add_argument("--key", action="append", default=[], metavar="COLUMN", help="upsert, totals: part of the key")
    parser.add_argument("--sum", action="append", default=[], metavar="COLUMN", help="totals: a column to add up")
    parser.add_argument("--rejects", action="store_true", help="values that do not parse go to a table of their own")
    parser.add_argument(
        "--keep-value", action="store_true", help="keep _value of every record, not only of what does not parse"
    )
    parser.add_argument("--sql", help="query of the view `records` that makes the rows of the result")
    parser.add_argument("--transform", metavar="MODULE:FUNCTION", help="function from DataFrame to DataFrame, likewise")
    parser.add_argument(
        "--max-records", type=_positive, default=MAX_RECORDS, metavar="N", help="offsets per commit, at most"
    )
    parser.add_argument(
        "--kafka-option", action="append", default=[], metavar="K=V", help="client option, librdkafka's name"
    )
    parser.add_argument(
        "--spark-kafka-option",
        action="append",
        default=[],
        metavar="K=V",
        help="option of Spark's Kafka client, Java's name",
    )
    parser.add_argument(
        "--jars", default="", help="jars of Spark's Kafka connector, comma-separated (not under spark-submit)"
    )
    parser.add_argument("--master", default="local[*]", help="where Spark runs (not under spark-submit)")
    parser.add_argument(
        "--metrics-port", type=_port, metavar="N", help="serve metrics for Prometheus meanwhile; 0: on a free port"
    )
    parser.add_argument("--metrics-host", default="127.0.0.1", metavar="H", help="address to serve them on")
    parser.add_argument("--metrics-file", metavar="F", help="write them to this file at the end (F.prom)")
    parser.add_argument("--json", action="store_true", help="print one line of JSON at the end")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= MAX_PORT:
        raise argparse.ArgumentTypeError(f"{number} is not between 0 and {MAX_PORT}")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 <= number <= MAX_INTERVAL_S:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and {MAX_INTERVAL_S}")
    return number


def _pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise OptionRefused(f"{option} {name}: write name=value")  # the value may be a secret
        pairs[name] = value
    return pairs


def _options_of_variable(variable: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    text = environment.get(variable, "")
    if not text:
        return {}
    try:
        options = json.loads(text)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise OptionRefused(f'{variable} is no JSON object. Write {{"security.protocol": "SASL_SSL"}}')
    # JSON's true is Kafka's "true".
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in options.items()}
