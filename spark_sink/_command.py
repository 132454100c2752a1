"""The job's own command line, for `python -m spark_sink` and for spark-submit."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence

from spark_sink._delta import DeltaStore
from spark_sink._job import MAX_RECORDS, Job, run_batch
from spark_sink._kafka_options import java_options
from spark_sink._plan import TopicPlanner
from spark_sink._session import spark_session
from spark_sink.errors import Fenced, OptionRefused, SinkError

EXIT_OK = 0
EXIT_REFUSED = 2
"""Something the person can set right; the sentence is on standard error. argparse uses the same number."""
EXIT_FENCED = 3
"""Another job of the name has taken over: no mistake where jobs may overlap, so schedulers can tell it apart."""

CLIENT_VARIABLE = "SPARK_SINK_KAFKA_OPTIONS"
READER_VARIABLE = "SPARK_SINK_SPARK_KAFKA_OPTIONS"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job.

    Args:
        arguments: the command line without the program's name; None: the process's own.

    Returns:
        The exit code: 0 done, 2 refused, 3 fenced.
    """
    options = _parser().parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    try:
        _run(options)
    except Fenced as error:
        print(f"fenced: {error}", file=sys.stderr)
        return EXIT_FENCED
    except SinkError as error:
        print(f"refused: {error}", file=sys.stderr)
        return EXIT_REFUSED
    return EXIT_OK


def _run(options: argparse.Namespace) -> None:
    client = _options_of_variable(CLIENT_VARIABLE) | _pairs("--kafka-option", options.kafka_option)
    reader = _options_of_variable(READER_VARIABLE) | _pairs("--spark-kafka-option", options.spark_kafka_option)
    job = Job(
        options.bootstrap,
        options.topic,
        options.name,
        options.columns,
        options.max_records,
        client,
        java_options(client, reader),
    )
    began = time.monotonic()
    DeltaStore(options.path, options.name, options.topic)  # refuses bad names and paths before Kafka is asked
    planner = TopicPlanner(job.bootstrap, job.topic, client)
    store = DeltaStore(options.path, options.name, options.topic, planner.identity())
    jars = [jar for jar in options.jars.split(",") if jar]
    outcome = run_batch(job, planner, store, lambda: spark_session(f"sink-{job.name}", jars, options.master))
    seconds = time.monotonic() - began
    logging.getLogger("spark_sink").info(
        "%s is up to date: %d rows added in %d commits, %.1f s", options.path, outcome.rows, outcome.commits, seconds
    )
    if options.json:
        result = {
            "rows": outcome.rows,
            "commits": outcome.commits,
            "offsets": outcome.offsets,
            "seconds": round(seconds, 3),
        }
        print(json.dumps(result))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="spark_sink",
        description="Bring the committed records of a Kafka topic into a Delta table, each exactly once.",
        epilog="Exit codes: 0 done, 2 refused with a sentence, 3 fenced by another job of the same name. Options with "
        f"secrets belong into {CLIENT_VARIABLE} and {READER_VARIABLE} (JSON objects): others can read a command line.",
    )
    parser.add_argument("--bootstrap", required=True, help="Kafka, host:port[,host:port]")
    parser.add_argument("--topic", required=True, help="the topic to read")
    parser.add_argument("--path", required=True, help="folder of the result table")
    parser.add_argument("--name", required=True, help="name of the job; two jobs of one name fence each other")
    parser.add_argument("--mode", choices=["batch"], default="batch", help="batch: stop at the end as of the start")
    parser.add_argument("--columns", help='fields of JSON values as Spark DDL, "user string, amount double"')
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
    parser.add_argument("--json", action="store_true", help="print one line of JSON at the end")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
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
