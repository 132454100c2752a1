"""Missing topics of a stream that never ran: what `ratchet resume` creates, and which remedy its errors give."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ratchet.app.names import changelog_name
from kafka_ratchet.app.operations.missing_topics import remedy_for
from kafka_ratchet.producers import made_topic
from kafka_ratchet.topic_log.clients import partition_counts
from tests.app.worker_process import Site

STREAM = """
[streams.events]
input = "{app}.in"
output = "{app}.out"
dead_letters = "{app}.dead"
partitions = 2
{more}
"""
NO_TOPICS = "create_topics = false"
BY_IDENTITY = 'identity = "key"\nrepartition_by = "identity"'
EXECUTED = ("--from", "latest", "--reason", "moved", "--execute")
INTERNAL = "Do not create it by hand"


def site(folder: Path, broker: str, more: str, *topics: str) -> tuple[Site, AdminClient]:
    app = f"missing-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker})
    for topic in topics:
        assert made_topic(admin, NewTopic(f"{app}.{topic}", 2, 1), 30)
    return Site(folder, broker, app, STREAM.format(app=app, more=more)), admin


def test_resume_creates_the_changelog_alone_without_create_topics(broker: str, tmp_path: Path) -> None:
    place, admin = site(tmp_path, broker, NO_TOPICS, "in", "out", "dead")
    done = place.command("resume", *EXECUTED)
    assert done.returncode == 0, done.stderr
    changelog = changelog_name(place.app, "events")
    assert partition_counts(admin, [changelog]) == {changelog: 2}


@pytest.mark.parametrize(
    ("more", "options", "said"),
    [
        (NO_TOPICS, (), "does not exist, and create_topics is false, so Ratchet creates none. Correct the name"),
        (BY_IDENTITY, (), "`ratchet resume --stream events-arrivals` with --from and --execute creates its topics"),
        ("", ("--adopt",), "creates the topics only without --adopt: run it so once"),
    ],
)
def test_resume_does_not_advise_the_command_that_has_just_run(
    broker: str, tmp_path: Path, more: str, options: tuple[str, ...], said: str
) -> None:
    place, _ = site(tmp_path, broker, more, "in")
    refused = place.command("resume", *options, *EXECUTED)
    assert refused.returncode == 2
    assert said in refused.stderr
    assert "with --from and --execute creates the topics." not in refused.stderr


@pytest.mark.parametrize("without", [None, "The import creates its topics"])
@pytest.mark.parametrize("changelog", [False, True])
def test_no_remedy_is_to_create_an_internal_topic(tmp_path: Path, without: str | None, changelog: bool) -> None:
    settings = site(tmp_path, "127.0.0.1:1", BY_IDENTITY)[0].settings
    topic = settings.streams["events"].input
    found = {changelog_name(settings.app, "events")} if changelog else set[str]()
    said = remedy_for(topic, settings, "events", found, adopt=False, without_changelog=without)
    assert "Create it" not in said
    assert (INTERNAL in said) == (changelog or without is None)


@pytest.mark.parametrize("more", ["", NO_TOPICS])
def test_a_user_creates_the_output_behind_an_internal_topic(tmp_path: Path, more: str) -> None:
    settings = site(tmp_path, "127.0.0.1:1", f"{BY_IDENTITY}\n{more}")[0].settings
    stream = settings.streams["events"]
    said = remedy_for(stream.output, settings, "events", {stream.input}, adopt=False, without_changelog=None)
    assert INTERNAL not in said
    assert said.startswith("Create it with as many partitions as the input has, because create") == bool(more)
    assert f"a worker then creates {'the changelog' if more else 'the topics'} of events." in said


def test_a_user_creates_the_topics_that_ratchet_may_not(tmp_path: Path) -> None:
    settings = site(tmp_path, "127.0.0.1:1", NO_TOPICS)[0].settings
    stream, changelog = settings.streams["events"], changelog_name(settings.app, "events")

    def remedy(topic: str, *found: str) -> str:
        return remedy_for(topic, settings, "events", found, adopt=False, without_changelog=None)

    first = "In a stream without a changelog, `ratchet resume` with --from and --execute creates the changelog. Start"
    assert remedy(stream.input).startswith(f"Create it with its final number of partitions. {first}")
    as_many = "Create it with as many partitions as the input has, because create_topics is false."
    assert remedy(stream.output).startswith(f"{as_many} {first}")
    assert remedy(changelog).startswith(first)
    assert remedy(stream.output, changelog) == f"Create it with as many partitions as {changelog} has"
