"""A producer's files in the proof: what never came to Kafka is found, with file and line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from confluent_kafka import Producer as Client
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from typer import Typer
from typer.testing import CliRunner, Result

from kafka_ratchet.app.cli.verify import verify as verify_command
from kafka_ratchet.app.verify import ExitCode, Report, SourceFiles, verify
from kafka_ratchet.errors import SettingsError, SourceError
from kafka_ratchet.producers import Producer, open_files, publish
from tests.app.worker_process import read_all
from tests.app.written_stream import NewTopic, Stage

NAME = "shop-1"


class Published(Stage):
    """A stream of two partitions, whose output is copied from its input by hand."""

    def publish(self, *paths: Path, **options: str) -> None:
        source = open_files(paths, **options)  # type: ignore[arg-type]
        settings = {"bootstrap.servers": self.broker}
        with Producer(self.topics[0], NAME, options=settings, source=source, timeout_s=60) as producer:
            publish(source, producer)

    def forward(self, *but: int) -> None:
        """All of the input into the output, without these sequences; and commit."""
        ends = []
        for partition, messages in sorted(read_all(self.broker, self.topics[0]).items()):
            for message in messages:
                headers = message.headers() or []
                if int.from_bytes(dict(headers)["ratchet-sequence"], "big") in but:
                    continue
                at = message.timestamp()[1]
                self.producer.produce(
                    self.topics[1], message.value(), message.key(), partition, timestamp=at, headers=headers
                )
            ends.append(len(messages))
        self.producer.flush()
        self.commit(*ends)

    def compare(self, *paths: Path, **options: str) -> Report:
        return verify(self.settings, source=SourceFiles(NAME, list(paths), **options))


@pytest.fixture
def stage(broker: str, new_topic: NewTopic) -> Published:
    return Published(broker, new_topic)


def lines(path: Path, numbers: list[int], **changed: str) -> Path:
    """Line by line: {"n": number, "key": ..., "text": ...}"""
    rows = [{"n": n, "key": f"k{n % 7}", "text": changed.get(f"_{n}", f"text {n}")} for n in numbers]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def test_all_of_the_files_is_there(stage: Published, tmp_path: Path) -> None:
    first = lines(tmp_path / "a.ndjson", list(range(40)))
    second = tmp_path / "b.csv.gz"
    second.write_bytes(gzip.compress(b'key,text\nk1,"two\nlines"\nk2,x\n'))
    stage.publish(first, second, key="key")
    stage.publish(first, second, key="key")
    stage.forward()
    report = stage.compare(first, second, key="key")
    assert report.source is not None
    assert report.source.as_dict() == {
        "producer": NAME,
        "ok": True,
        "records": 42,
        "delivered": 42,
        "missing": 0,
        "altered": 0,
        "unpublished": 0,
        "first_unpublished": None,
        "pending": 0,
        "dead_lettered": 0,
        "before": 0,
        "not_in_files": 0,
        "findings": [],
    }
    assert report.exit_code() is ExitCode.PROVEN


def test_what_is_not_yet_published_waits_and_is_not_missing(stage: Published, tmp_path: Path) -> None:
    path = lines(tmp_path / "a.ndjson", list(range(10)))
    stage.publish(path)
    stage.forward()
    lines(path, list(range(13)))
    report = stage.compare(path)
    assert report.source is not None
    assert (report.source.delivered, report.source.unpublished) == (10, 3)
    assert report.source.first_unpublished == f"{path} line 11"
    assert (report.ok, report.exit_code(), report.exit_code(pending_ok=True)) == (True, 3, 0)
    stage.publish(path)
    report = stage.compare(path)
    assert report.source is not None
    assert (report.source.delivered, report.source.pending, report.exit_code()) == (10, 3, 3)


def test_what_waits_behind_an_open_transaction_is_pending_and_not_missing(stage: Published, tmp_path: Path) -> None:
    file = lines(tmp_path / "a.ndjson", list(range(9)))
    foreign = Client(
        {
            "bootstrap.servers": stage.broker,
            "transactional.id": f"foreign-{stage.topics[0]}",
            "transaction.timeout.ms": 600_000,
        }
    )
    foreign.init_transactions(30)
    foreign.begin_transaction()
    for partition in (0, 1):
        foreign.produce(stage.topics[0], b"x", partition=partition)
    assert foreign.flush(30) == 0
    stage.publish(file)
    stage.commit(0, 0)
    report = stage.compare(file)
    assert report.source is not None
    assert (dict(report.source.counts), report.source.pending, report.source.unpublished) == ({}, 9, 0)
    assert report.pending == 11
    assert report.exit_code() is ExitCode.NOT_ALL_PROVEN
    assert {each.transactions[0].transactional_id for each in report.blocked} == {f"foreign-{stage.topics[0]}"}
    foreign.abort_transaction(30)


def test_what_never_came_and_what_came_as_something_else_are_found_with_file_and_line(
    stage: Published, tmp_path: Path
) -> None:
    sent = lines(tmp_path / "sent.ndjson", [1, 2, 4, 5, 6, 8])
    stage.publish(sent, sequence_field="n")
    stage.forward(6)
    path = lines(tmp_path / "meant.ndjson", [1, 2, 3, 4, 5, 6, 7], _5="another text")
    report = stage.compare(path, sequence_field="n")
    source = report.source
    assert source is not None
    assert report.counts == {"lost": 1}
    assert dict(source.counts) == {"missing": 3, "altered": 1}
    assert (source.delivered, source.foreign, report.exit_code(pending_ok=True)) == (3, 1, ExitCode.WRONG)
    found = [(each.kind, Path(each.file).name, each.line, each.sequence) for each in source.findings]
    assert found == [
        ("missing", "meant.ndjson", 3, 3),
        ("altered", "meant.ndjson", 5, 5),
        ("missing", "meant.ndjson", 6, 6),
        ("missing", "meant.ndjson", 7, 7),
    ]
    assert "is not in Kafka, and the producer has published up to 8" in source.findings[0].detail
    assert "is in the input, partition" in source.findings[2].detail
    assert "and was never forwarded" in source.findings[2].detail


def test_what_retention_has_deleted_is_older_and_not_missing(stage: Published, tmp_path: Path) -> None:
    path = lines(tmp_path / "a.ndjson", list(range(30)))
    stage.publish(path)  # without keys all go to the partition of the name
    stage.forward()
    admin = AdminClient({"bootstrap.servers": stage.broker})
    (partition,) = (number for number, messages in read_all(stage.broker, stage.topics[0]).items() if messages)
    places = [TopicPartition(topic, partition, 12) for topic in stage.topics[:2]]
    for deleted in admin.delete_records(places).values():
        deleted.result(30)
    state = tmp_path / "state"
    for _ in range(2):  # also where the run itself goes on from the last one
        report = verify(stage.settings, state=state, source=SourceFiles(NAME, [path]))
        assert report.source is not None
        assert (report.source.delivered, report.source.before, report.exit_code()) == (18, 12, ExitCode.PROVEN)


def test_a_topic_made_again_has_nothing_of_what_the_producer_has_published(
    stage: Published, new_topic: NewTopic, tmp_path: Path
) -> None:
    path = lines(tmp_path / "a.ndjson", [1, 2])
    stage.publish(path)
    admin = AdminClient({"bootstrap.servers": stage.broker})
    admin.delete_topics([stage.topics[0]])[stage.topics[0]].result(30)
    other = Published(stage.broker, new_topic)
    other.forward()
    report = other.compare(path)
    assert report.source is not None
    assert (report.source.unpublished, report.ok) == (2, True)


def test_what_the_command_takes(stage: Published, tmp_path: Path) -> None:
    files = [lines(tmp_path / "a.ndjson", [1, 2]), lines(tmp_path / "b.ndjson", [3])]
    stage.publish(*files)
    stage.forward()
    given, output, letters = stage.topics
    config = tmp_path / "ratchet.toml"
    config.write_text(
        f'app = "{stage.settings.app}"\nbootstrap = "{stage.broker}"\n'
        f'[streams.events]\ninput = "{given}"\noutput = "{output}"\ndead_letters = "{letters}"\n'
    )
    cli = Typer()
    cli.command()(verify_command)

    def run(*arguments: object) -> Result:
        return CliRunner().invoke(cli, ["--config", str(config), *map(str, arguments)], catch_exceptions=True)

    done = run("--source", *files, "--producer", NAME)
    assert done.exit_code == 0, done.output
    assert f"source of '{NAME}': 3 records; 3 in the output" in done.output
    assert "of the source: missing 0, altered 0" in done.output
    done = run("--json", "--producer", NAME, "--source", files[0], "--source", files[1])
    assert json.loads(done.output)["source"]["delivered"] == 3
    for arguments, sentence in (
        (["--source", files[0]], "add --producer NAME"),
        ([files[0]], "files are allowed only after --source"),
        (["--producer", NAME], "describe the files of --source"),
    ):
        assert isinstance(run(*arguments).exception, SettingsError)
        assert sentence in str(run(*arguments).exception)
    refused = run("--source", tmp_path / "nothing", "--producer", NAME)
    assert isinstance(refused.exception, SourceError)
    config.write_text(config.read_text() + "forward = false\n")
    assert "a stream with forward = false has none there" in str(run("--source", *files, "--producer", NAME).exception)
