"""`ratchet state export` and `import`: what a file says holds, nothing is lowered, and verify knows of it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_ratchet.app.names import changelog_name
from kafka_ratchet.app.operations.missing_topics import prepare_new
from kafka_ratchet.app.operations.policy_topic import write_record
from kafka_ratchet.app.operations.resume import Resume, ResumeOptions
from kafka_ratchet.app.operations.state_export import StateExport
from kafka_ratchet.app.operations.state_import import ImportOptions, StateImport, Where, superseded
from kafka_ratchet.app.operations.state_rows import Row, read_rows, write_rows
from kafka_ratchet.app.partitioner import Partitioner
from kafka_ratchet.app.verify import verify
from kafka_ratchet.app.worker.forget_requests import request_key, request_value
from kafka_ratchet.app.worker.topics import COMPACTED
from kafka_ratchet.errors import SettingsError, StateError, TopicMissing
from kafka_ratchet.producers import made_topic
from kafka_ratchet.tables.store import Store
from kafka_ratchet.transport.policy import ForgetRequest
from tests.app.local.test_broker import wait_until
from tests.app.worker_process import Site, WorkerProcess, read_all

STREAM = """
session_timeout_ms = 6000
[streams.events]
input = "{name}.in"
output = "{name}.out"
dead_letters = "{name}.dead"
identity = "key"
partitions = 2
"""


@pytest.fixture
def place(broker: str, tmp_path: Path) -> Site:
    app = f"state-{uuid.uuid4().hex[:8]}"
    return Site(tmp_path, broker, app, STREAM.format(name=app))


@pytest.fixture
def worker(place: Site) -> Iterator[WorkerProcess]:
    process = WorkerProcess(place)
    yield process
    process.end()


def publish(place: Site, *records: tuple[bytes, int]) -> None:
    producer = Producer({"bootstrap.servers": place.broker, "partitioner": "murmur2"})
    for key, number in records:
        producer.produce(f"{place.app}.in", b"%d" % number, key, headers=[("ratchet-sequence", b"%d" % number)])
    assert producer.flush(30) == 0


def command(place: Site, *arguments: str) -> dict[str, list[dict[str, int]]]:
    done = place.command("state", *arguments, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, list[dict[str, int]]] = json.loads(done.stdout.splitlines()[-1])
    return found


def summed(outcome: dict[str, list[dict[str, int]]]) -> list[int]:
    return [sum(each[name] for each in outcome["partitions"]) for name in ("added", "raised", "replaced", "kept")]


def test_a_state_is_exported_seeded_and_held(place: Site, worker: WorkerProcess, tmp_path: Path) -> None:
    worker.start()
    worker.wait_for(lambda: "worker runs" in worker.text(), "the start")
    publish(place, (b"a", 5), (b"\xff", 7), (b"c", 1))
    worker.wait_for(lambda: place.position(f"{place.app}.in") == 3, "three records")
    exported = tmp_path / "state.parquet"
    command(place, "export", str(exported))  # a worker may run
    rows = {row.identity: row for row in read_rows(exported)}
    assert {name: row.sequence for name, row in rows.items()} == {b"a": 5, b"\xff": 7, b"c": 1}
    assert all(row.partition == Partitioner.MURMUR2.place(name, 2) for name, row in rows.items())
    seeds = tmp_path / "seeds.ndjson"
    seeds.write_text(
        '{"identity":"a","sequence":9}\n{"identity_hex":"ff","sequence":3}\n{"identity":"new","sequence":4}\n'
    )
    misnamed = tmp_path / "misnamed.ndjson"
    misnamed.write_text('{"identity":"d","last":9}\n')  # as 0, all that it has sent would be new
    refused = place.command("state", "import", str(misnamed), "--dry-run")
    assert (refused.returncode, "row 1: has no sequence" in refused.stderr) == (2, True), refused.stdout
    refused = place.command("state", "import", str(seeds))
    assert (refused.returncode, "1 workers of" in refused.stderr) == (2, True)
    worker.stop()
    assert summed(command(place, "import", str(seeds), "--dry-run")) == [1, 1, 0, 1]
    assert summed(command(place, "import", str(seeds))) == [1, 1, 0, 1]
    assert summed(command(place, "import", str(seeds))) == [0, 0, 0, 3]  # done again it finds what is there
    publish(place, (b"a", 9), (b"a", 10), (b"\xff", 7), (b"new", 4), (b"new", 5), (b"c", 2))
    worker.start()
    worker.wait_for(lambda: place.position(f"{place.app}.in") == 9, "the records after it")
    worker.stop()
    out = [
        (message.key(), int(message.value() or b""))
        for messages in read_all(place.broker, f"{place.app}.out").values()
        for message in messages
    ]
    assert sorted(out) == [(b"a", 5), (b"a", 10), (b"c", 1), (b"c", 2), (b"new", 5), (b"\xff", 7)]
    report = verify(place.settings)
    assert (report.ok, sum(edit.added + edit.raised for _, edit in report.edits)) == (True, 2), report.findings


def test_rule_and_input_are_corrected_before_an_import(place: Site, worker: WorkerProcess, tmp_path: Path) -> None:
    corrected = place.config.read_text("utf-8")
    place.config.write_text(corrected.replace('identity = "key"\n', "").replace('.in"', '.misspelt"'), "utf-8")
    worker.start()
    changelog = f"{place.app}-changelog.events"
    worker.wait_for(lambda: worker.text().count("lane runs") == 2, "the lanes")
    worker.wait_for(lambda: sum(map(len, read_all(place.broker, changelog).values())) == 4, "their first commits")
    worker.stop()
    place.config.write_text(corrected, "utf-8")
    topic = f"{place.app}.in"
    assert made_topic(AdminClient({"bootstrap.servers": place.broker}), NewTopic(topic, 2, 1), 30)
    seeds = tmp_path / "seeds.ndjson"
    seeds.write_text('{"identity":"a","sequence":5}\n')
    assert summed(command(place, "import", str(seeds))) == [1, 0, 0, 0]
    publish(place, (b"a", 5), (b"a", 6), (b"b", 1))
    worker.start()
    worker.wait_for(lambda: place.position(topic) == 3, "three records")
    worker.stop()
    out = [message.value() for each in read_all(place.broker, f"{place.app}.out").values() for message in each]
    assert (sorted(out), "halted" in worker.text()) == ([b"1", b"6"], False)


def test_a_refusal_in_one_partition_is_planned_and_leaves_none_imported(
    place: Site, worker: WorkerProcess, tmp_path: Path
) -> None:
    worker.start()
    worker.wait_for(lambda: worker.text().count("lane runs") == 2, "the lanes")
    worker.stop()
    topic, changelog = f"{place.app}.in", f"{place.app}-changelog.events"
    group = Consumer({"bootstrap.servers": place.broker, "group.id": place.app})
    group.commit(offsets=[TopicPartition(topic, 1, 0)], asynchronous=False)
    group.close()
    names = [str(number) for number in range(20)]
    assert {Partitioner.MURMUR2.place(name.encode(), 2) for name in names} == {0, 1}
    seeds = tmp_path / "seeds.ndjson"
    seeds.write_text("".join(f'{{"identity":"{name}","sequence":5}}\n' for name in names))
    before = {number: len(found) for number, found in read_all(place.broker, changelog).items()}
    for arguments in (["--dry-run"], []):
        refused = place.command("state", "import", str(seeds), *arguments)
        assert refused.returncode == 2, refused.stdout
        said = f"{changelog}, partition 1: the group's offset 0 was committed by another client"
        assert said in " ".join(refused.stderr.split())
    assert {number: len(found) for number, found in read_all(place.broker, changelog).items()} == before


@pytest.mark.matrix
def test_an_import_over_a_recreated_changelog_names_the_resume_that_ends_the_halt(
    place: Site, worker: WorkerProcess, tmp_path: Path
) -> None:
    worker.start()
    worker.wait_for(lambda: "worker runs" in worker.text(), "the start")
    publish(place, (b"a", 5), (b"a", 6))
    number = Partitioner.MURMUR2.place(b"a", 2)
    worker.wait_for(lambda: place.position(f"{place.app}.in") == 2, "two records")
    exported = tmp_path / "state.ndjson"
    command(place, "export", str(exported))
    worker.stop()
    recreate_changelog(place)
    for arguments in (["--dry-run"], []):
        tried = place.command("state", "import", str(exported), *arguments)
        assert tried.returncode == 0, tried.stdout + tried.stderr
        said = (
            f"partition {number}: the group has committed offset 2, and the changelog has only records counted "
            "below 0: it was deleted and created again, or lost its end. The application has claimed the topic that "
            "was there before: after the import, the partition stays halted until `ratchet resume --stream events "
            "--reason TEXT --execute`"
        )
        assert said in tried.stdout
        if arguments:
            assert '"uncounted":[0,2]' in place.command("state", "import", str(exported), *arguments, "--json").stdout
    assert "deleted and created again" not in place.command("state", "import", str(exported)).stdout
    worker.start()
    worker.wait_for(lambda: "the name belonged to topic id" in worker.text(), "the halt")
    worker.stop()
    resumed = place.command("resume", "--stream", "events", "--reason", "imported", "--execute")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    worker.start()
    publish(place, (b"a", 6), (b"a", 7))
    worker.wait_for(lambda: place.position(f"{place.app}.in") == 4, "two more records")
    assert sum(map(len, read_all(place.broker, f"{place.app}.out").values())) == 3


@pytest.mark.matrix
def test_an_import_over_a_recreated_changelog_outlives_earlier_requests_to_forget(
    place: Site, worker: WorkerProcess, tmp_path: Path
) -> None:
    worker.start()
    worker.wait_for(lambda: "worker runs" in worker.text(), "the start")
    publish(place, (b"a", 5))
    worker.wait_for(lambda: place.position(f"{place.app}.in") == 1, "a record")
    done = place.command("forget", "--identity", "a", "--reason", "a new device")
    assert done.returncode == 0, done.stdout + done.stderr
    publish(place, (b"a", 1), (b"a", 2))
    worker.wait_for(lambda: place.position(f"{place.app}.in") == 3, "the new beginning")
    exported, again = tmp_path / "state.ndjson", tmp_path / "again.ndjson"
    command(place, "export", str(exported))
    worker.stop()
    recreate_changelog(place)
    tried = place.command("state", "import", str(exported), "--dry-run").stdout
    assert "to forget the identity b'a' would not be applied again" in tried
    (imported,) = command(place, "import", str(exported))["partitions"]
    assert [each["reason"] for each in imported["superseded"]] == ["a new device"]  # type: ignore[attr-defined]
    resumed = place.command("resume", "--stream", "events", "--reason", "imported", "--execute")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    worker.start()
    publish(place, (b"a", 2))
    worker.wait_for(lambda: place.position(f"{place.app}.in") == 4, "the repeated record")
    worker.stop()
    command(place, "export", str(again))
    assert [(row.identity, row.sequence) for row in read_rows(again)] == [(b"a", 2)]
    assert sum(map(len, read_all(place.broker, f"{place.app}.out").values())) == 3


REQUEST = ForgetRequest("0" * 16, b"a", None, "now", "me@here", "so", None, "id", (4, 9))


@pytest.mark.parametrize(
    ("request_", "position", "is_superseded"),
    [
        (REQUEST, 9, True),
        (REQUEST._replace(partition=1), 9, True),
        (REQUEST._replace(above=3), 9, True),
        (REQUEST, None, True),  # the group has no offset: nothing tells whether a worker has applied the request
        (REQUEST, 8, False),  # earlier records are still to be judged, so no worker has applied the request
        (REQUEST._replace(partition=0), 9, False),
        (REQUEST._replace(identity=b"b"), 9, False),  # the file does not speak of it
        (REQUEST._replace(id="1" * 16), 9, False),  # applied
    ],
)
def test_an_import_supersedes_unapplied_requests_about_its_identities(
    request_: ForgetRequest, position: int | None, is_superseded: bool
) -> None:
    state: Any = SimpleNamespace(is_done=lambda request: request == "1" * 16)
    where = Where(1, "id", position)
    found = superseded([request_], state, {b"a": 7}, where)
    assert [(each.id, each.before, each.after) for each in found] == [(request_.id, 7, 7)] * is_superseded
    assert not any(each.has_changed or each.has_forgotten for each in found)


def test_a_superseded_request_counts_as_applied(place: Site) -> None:
    admin = AdminClient({"bootstrap.servers": place.broker})
    assert made_topic(admin, NewTopic(f"{place.app}.in", 2, 1), 30)
    prepare_new(place.settings, place.broker, "events")
    write_record(place.settings, place.broker, request_key("events", REQUEST.id), request_value(REQUEST), "it")
    how = ImportOptions(everywhere=True)
    found = []
    for sequence in (7, 8):  # the second import raises the sequence
        importer = StateImport(place.settings, place.broker, "events", how)
        done = importer.run([Row(b"a", sequence, None, None)], dry_run=False)
        found.append([[edit.id for edit in each.superseded] for each in done])
    assert found == [[[REQUEST.id]] * 2, [[]] * 2]


def test_commands_do_not_advise_a_worker_for_a_stream_that_never_ran(place: Site) -> None:
    """Its first worker would forward every record, also those that the system before it has counted."""
    everywhere, decision = ImportOptions(everywhere=True), ResumeOptions(None, "", False, False)
    admin = AdminClient({"bootstrap.servers": place.broker})
    for topic in (f"{place.app}.in", f"{place.app}.out", f"{place.app}.dead"):
        for make, remedy in (
            (lambda: StateImport(place.settings, place.broker, "events", everywhere), "import without --dry-run"),
            (lambda: StateExport(place.settings, place.broker, "events"), "no state to read"),
            (lambda: Resume(place.settings, place.broker, "events", decision), "with --from and --execute"),
        ):
            with pytest.raises(TopicMissing, match=f"{topic} does not exist.*{remedy}") as refused:
                make()
            assert "start a worker" not in str(refused.value)
        made_topic(admin, NewTopic(topic, 2, 1), 30)
    with pytest.raises(TopicMissing, match=rf"{changelog_name(place.app, 'events')} does not exist.*Start no worker"):
        StateImport(place.settings, place.broker, "events", everywhere)


def recreate_changelog(place: Site) -> None:
    """Delete the changelog and create it again, as an operator does who has lost it."""
    admin, changelog = AdminClient({"bootstrap.servers": place.broker}), changelog_name(place.app, "events")
    admin.delete_topics([changelog])[changelog].result(30)
    new = NewTopic(changelog, 2, 1, config=COMPACTED)
    wait_until(lambda: created(admin, new), "the new changelog")


def created(admin: AdminClient, topic: NewTopic) -> bool:
    """Try to create a topic whose deletion may not be over."""
    try:
        admin.create_topics([topic])[topic.topic].result(30)
    except KafkaException:
        return False
    return True


ROWS = st.builds(
    Row,
    st.binary(max_size=20),
    st.integers(0, 2**63 - 1),
    st.integers(0, 99),
    st.integers(1, 99),
    st.integers(0, 2**32 - 1),  # four bytes in the store
    st.binary(max_size=9),
)


@settings(deadline=None)
@given(rows=st.lists(ROWS, max_size=20), ending=st.sampled_from([".parquet", ".ndjson"]))
def test_a_file_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], ending: str
) -> None:
    path = tmp_path_factory.mktemp("rows") / f"state{ending}"
    assert write_rows(path, rows) == len(rows)
    assert list(read_rows(path)) == [row._replace(seen=0) for row in rows]  # for people


@pytest.mark.parametrize("ending", [".parquet", ".ndjson"])
def test_two_that_write_one_file_at_a_time_leave_that_of_one(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"state{ending}"
    mine = [Row(b"mine %d" % number, number, 0, 2) for number in range(20_000)]
    theirs = [Row(b"theirs", 1, 0, 2)]

    def rows() -> Iterator[Row]:
        yield from mine[:15_000]
        assert write_rows(path, theirs) == 1  # begun behind us, and done before us
        yield from mine[15_000:]

    with pytest.raises(SettingsError, match="another program created the file during the export"):
        write_rows(path, rows())
    assert list(read_rows(path)) == theirs
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "has neither"),
        ("[", "row 1: is not JSON"),
        ("[" * 100_000, "row 1: is longer than"),
        ("3", "row 1: is not an object"),
        ('{"identity": 3}', "identity is not text"),
        ('{"identity": "a", "identity_hex": "62"}', "identity and identity_hex are different identities"),
        ('{"identity_hex": "zz"}', "row 1: non-hexadecimal"),
        ('{"identity": "a", "sequence": -1}', "sequence is not a whole number"),
        ('{"identity": "a", "sequence": 1.5}', "sequence is not a whole number"),
        ('{"identity": "a", "sequence": 9223372036854775808}', "sequence is not a whole number"),
        ('{"identity": "%s"}' % ("x" * 1025), "the identity has 1,025 bytes"),
    ],
)
def test_a_row_that_cannot_be_read_is_a_sentence(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "state.ndjson"
    path.write_text(line or "{}")
    with pytest.raises(SettingsError, match=said):
        list(read_rows(path))


def test_a_file_that_is_none_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("no")
    for path, said in (
        ("a.parquet", "cannot be read as Parquet"),
        ("b.ndjson", "cannot be read"),
        ("c.csv", "must end"),
    ):
        with pytest.raises(SettingsError, match=said):
            list(read_rows(tmp_path / path))
    with pytest.raises(SettingsError, match="already exists"):
        write_rows(tmp_path / "a.parquet", [])


def test_an_export_without_room_on_the_disk_fails(place: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    admin = AdminClient({"bootstrap.servers": place.broker})
    assert made_topic(admin, NewTopic(f"{place.app}.in", 2, 1), 30)
    prepare_new(place.settings, place.broker, "events")
    seeds = tmp_path / "seeds.ndjson"
    seeds.write_text('{"identity":"a","sequence":9}\n')
    everywhere = ImportOptions(everywhere=True)
    StateImport(place.settings, place.broker, "events", everywhere).run(read_rows(seeds), dry_run=False)

    def full(self: Store, *_: object) -> None:
        raise StateError(f"{self.path}: cannot write: No space left on device")

    monkeypatch.setattr(Store, "apply", full)
    exported = tmp_path / "state.ndjson"
    with pytest.raises(StateError, match="No space left on device"):
        write_rows(exported, StateExport(place.settings, place.broker, "events").rows())
    assert {path.name for path in tmp_path.iterdir()} == {"ratchet.toml", "seeds.ndjson"}
