"""A Faust program with a `group_by`, moved to Ratchet with its tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.app.faust_host.hosted import HostedProgram

pytestmark = pytest.mark.matrix

USERS = [f"u{n % 13}" for n in range(260)]
IMPORT = ("-m", "kafka_ratchet", "state", "import", "--faust", "grouped:app")

INTERRUPTED = """
import sys
from kafka_ratchet.app.faust_host import moving

commit, left = moving._TakeOver._commit, [int(sys.argv[1])]

async def commit_some(self, *rest):
    if not left[0]:
        raise SystemExit("interrupted")
    left[0] -= 1
    await commit(self, *rest)

moving._TakeOver._commit = commit_some
moving.take_over("grouped:app", None, dry_run=False)
"""
"""Import that ends after a number of partitions."""


@pytest.fixture
def program(broker: str, tmp_path: Path) -> Iterator[HostedProgram]:
    made = HostedProgram("grouped", broker, tmp_path)
    yield made
    made.end()


def total_by_plain_faust(program: HostedProgram, partitions: int = 2) -> None:
    program.create("orders", partitions=partitions)
    program.create("done")
    total_more_by_plain_faust(program)


def total_more_by_plain_faust(program: HostedProgram) -> None:
    program.kind = "kafka"
    program.publish("orders", [(str(n), user) for n, user in enumerate(USERS)])
    program.start()
    program.wait_for(lambda: len(program.read("done")) == len(USERS), "the last total of plain Faust")
    program.stop()
    program.kind = "ratchet"


def refusal_to_start(program: HostedProgram) -> str:
    program.start()
    assert program.process.wait(120) == 2, program.text()[-2000:]
    return program.text()


def check_totals(program: HostedProgram, times: int) -> None:
    """Each total continues where plain Faust has stopped."""
    program.publish("orders", [(str(n), user) for n, user in enumerate(USERS)])
    program.start()
    program.wait_for(lambda: len(program.read("done")) >= times * len(USERS), "the last total")
    assert program.table("totals") == {user: times * count for user, count in Counter(USERS).items()}
    program.stop()


@pytest.mark.parametrize("partitions", [1, 2])
def test_an_interrupted_import_lets_no_worker_begin_with_empty_tables(program: HostedProgram, partitions: int) -> None:
    total_by_plain_faust(program)
    assert "interrupted" in program.run("-c", INTERRUPTED, str(partitions)).stderr
    assert "plain Faust workers have committed" in refusal_to_start(program)
    done = program.run(*IMPORT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("partition") >= 4 - partitions
    check_totals(program, 2)


def test_an_import_interrupted_among_the_inputs_halts_the_rest(program: HostedProgram) -> None:
    total_by_plain_faust(program)
    assert "interrupted" in program.run("-c", INTERRUPTED, "3").stderr
    program.start()
    program.wait_for(lambda: "another client has committed offset" in program.text(), "the halt")
    program.stop()
    done = program.run(*IMPORT)
    assert done.returncode == 0, done.stderr
    check_totals(program, 2)


def test_a_start_of_lanes_without_records_lets_a_later_import_in(program: HostedProgram) -> None:
    program.create("orders", "done")
    program.start()
    program.wait_until_read()
    program.stop()
    total_more_by_plain_faust(program)
    assert "plain Faust workers have committed" in refusal_to_start(program)
    done = program.run(*IMPORT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("partition") >= 4
    check_totals(program, 2)
    again = program.run(*IMPORT)
    assert again.returncode == 2, again.stdout
    assert "has already committed" in again.stderr


def refusal_to_import(program: HostedProgram) -> str:
    planned, refused = program.run(*IMPORT, "--dry-run"), program.run(*IMPORT)
    assert (planned.returncode, refused.returncode) == (2, 2), planned.stdout + refused.stdout
    return planned.stderr


def test_grouped_tables_whose_offsets_kafka_has_deleted_are_not_imported(program: HostedProgram) -> None:
    total_by_plain_faust(program)
    admin = AdminClient({"bootstrap.servers": program.broker})
    [deleted] = admin.delete_consumer_groups([program.id]).values()
    deleted.result()
    refused = refusal_to_import(program)
    assert f"{program.topic('orders')}: has records" in refused
    assert "has no offset. Kafka deletes offsets" in refused


@pytest.mark.parametrize("is_committed", [True, False])
def test_records_that_wait_in_a_named_topic_are_not_left_behind(
    program: HostedProgram, is_committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """is_committed: True: plain Faust has committed offset 0 in the step's topic; False: it has no offset there."""
    monkeypatch.setenv("NAMED_TOPIC", "1")
    program.create("by-user", partitions=2)
    total_by_plain_faust(program)
    by_user = program.topic("by-user")
    admin = AdminClient({"bootstrap.servers": program.broker})
    [listed] = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(program.id)]).values()
    places = [each for each in listed.result().topic_partitions if each.topic != by_user]
    if is_committed:
        places += [TopicPartition(by_user, number, 0) for number in range(2)]
    [deleted] = admin.delete_consumer_groups([program.id]).values()
    deleted.result()
    [changed] = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(program.id, places)]).values()
    changed.result()
    if not is_committed:
        assert f"{by_user}, partition 0: Faust's tables have" in refusal_to_import(program)
        return
    done = program.run(*IMPORT)
    assert done.returncode == 0, done.stderr
    check_totals(program, 3)


def test_keys_are_not_imported_into_other_partitions(program: HostedProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPIC_PARTITIONS", "3")
    total_by_plain_faust(program, partitions=5)
    refused = refusal_to_import(program)
    assert "table totals: Faust's changelog has 3 partitions, but stream " in refused
    section = re.search(r"(\[streams\.\S+\]) in ratchet.toml with (.*), or give", refused.replace("\n", " "))
    assert section is not None, refused
    lines = section[2].replace(" and ", ", ").split(", ")
    (program.folder / "ratchet.toml").write_text("\n".join([section[1], *lines]), "utf-8")
    done = program.run(*IMPORT)
    assert done.returncode == 0, done.stderr
    check_totals(program, 2)


def test_a_partition_that_ratchet_has_processed_is_refused_in_the_plan(program: HostedProgram) -> None:
    program.create("orders", "done")
    check_totals(program, 1)
    places = [TopicPartition(program.topic("orders"), number, 1) for number in range(2)]
    admin = AdminClient({"bootstrap.servers": program.broker})
    [changed] = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(program.id, places)]).values()
    changed.result()
    refused = " ".join(refusal_to_import(program).split())
    assert f"already processed records of {program.topic('orders')}, and another client has committed" in refused
    assert "Nothing was imported" in refused
