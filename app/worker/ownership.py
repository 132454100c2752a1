"""Ownership of a stream's topics: checks and claims before its worker starts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from kafka_ratchet.app.names import changelog_name
from kafka_ratchet.app.processed import shows_work
from kafka_ratchet.app.settings import Settings, StreamSettings
from kafka_ratchet.app.status.group import ask_group
from kafka_ratchet.app.worker.claims import (
    CHANGELOG,
    DUPLICATES,
    OUTPUT,
    Claims,
    WriterClaim,
    claim,
    now,
    read_claims,
    taken,
)
from kafka_ratchet.errors import (
    OwnerDiffers,
    PartitionsDiffer,
    SettingsError,
    StateError,
    TopicMissing,
    TopicTaken,
)
from kafka_ratchet.producers import admin_client, describe_topic
from kafka_ratchet.topic_log.clients import NEW_TOPIC_S, consumer, offset_ranges, partition_counts
from kafka_ratchet.topic_log.reading import records_between
from kafka_ratchet.transport.owner import INPUT, Owner
from kafka_ratchet.transport.owner import KEY as OWNER

ASK_S: Final = 30.0
FOR_URLS: Final = str.maketrans("+/", "-_", "=")
"""Translation of a topic id from librdkafka's base64 to the base64 for URLs of Kafka's tools and Ratchet."""


class StreamOwnership:
    """Checks and claims of one stream's topics, before its worker starts."""

    def __init__(self, settings: Settings, bootstrap: str, name: str, found: Mapping[str, int]) -> None:
        """Read the claims of all applications, see `kafka_ratchet.app.worker.claims`.

        Args:
            settings: all settings
            bootstrap: host:port[,host:port]
            name: name of the stream
            found: number of partitions of each existing topic that `names_of` returns

        Raises:
            BrokerUnavailable: Kafka did not answer.
            TransportError: Kafka refuses the read.
            TopicError: this version cannot decode one of the claims.
        """
        self._settings, self._bootstrap, self._name, self._found = settings, bootstrap, name, found
        self._stream: StreamSettings = settings.streams[name]
        self._options = {"bootstrap.servers": bootstrap, **settings.kafka}
        self._claims: Claims = read_claims(settings, bootstrap)

    def check(self, changelog: str) -> None:
        """Refuse topics that another writer uses, and a missing input that the stream has read before.

        Raises:
            TopicMissing: the input is missing, and the changelog shows that a lane has read it.
            TopicTaken: input, output or dead letters are claimed as a changelog; or another stream has claimed the dead
                letters; or the topic of duplicates is claimed for anything else.
        """
        stream, app, name = self._stream, self._settings.app, self._name
        if stream.input not in self._found and self._has_read(changelog):
            raise TopicMissing(
                f"stream {name}: the input topic {stream.input!r} does not exist, but the changelog {changelog} shows "
                "that it existed. Ratchet does not create it again, since the loss of its records would go unnoticed. "
                f"Restore the topic; or create it, start the worker, and decide with `ratchet resume --stream {name}`"
            )
        for setting, topic in (
            ("input", stream.input),
            ("output", stream.output),
            ("dead_letters", stream.dead_letters),
        ):
            by = self._claims.get(topic)
            if by is not None and (by.part == CHANGELOG or (topic == stream.dead_letters and not by.is_of(app, name))):
                raise TopicTaken(
                    f"streams.{name}.{setting}: topic {topic!r} is written by {by}. Name another topic there"
                )
        by = self._claims.get(stream.duplicates) if stream.duplicates is not None else None
        if by is not None and not (by.is_of(app, name) and by.part == DUPLICATES):
            raise TopicTaken(
                f"streams.{name}.duplicates: topic {stream.duplicates!r} is written by {by}. Name another topic there"
            )

    def others(self, changelog: str) -> set[str]:
        """Return the applications with a foreign claim of this stream's output or changelog.

        A claim is foreign if another application or another stream made it, so this application may be among them.
        """
        known = (self._claims.get(topic) for topic in (self._stream.output, changelog))
        return {each.app for each in known if each is not None and not each.is_of(self._settings.app, self._name)}

    def refuse_others(self, changelog: str) -> None:
        """Refuse an output or changelog that another application or stream has claimed.

        Raises:
            TopicTaken: another application or stream has claimed one of them.
        """
        for topic in (self._stream.output, changelog):
            known = self._claims.get(topic)
            if known is not None and not known.is_of(self._settings.app, self._name):
                raise taken(topic, known, self._settings.app, self._name)

    def is_stale(self, changelog: str) -> bool:
        """Return True if output or changelog have no claim, or a claim of a topic deleted since."""
        topics = (self._stream.output, changelog)
        return any(topic not in self._claims or self._claims[topic].id != self.id_of(topic) for topic in topics)

    def refuse_added(self, changelog: str, partitions: int) -> None:
        """Refuse an input that was given more partitions since the stream claimed its changelog.

        Raises:
            PartitionsDiffer: the input has more partitions; a running worker stops for the same reason.
        """
        known = self._claims.get(changelog)
        if known is None or not 0 < known.partitions < partitions or known.id != self.id_of(changelog):
            return
        raise PartitionsDiffer(
            f"stream {self._name}: input {self._stream.input} has {partitions} partitions, and had {known.partitions} "
            "when this stream began. Keys have moved between partitions, so records sent again would count twice; "
            "adding partitions to the other topics does not help. docs/guide/partitions.md says what to do"
        )

    def refuse_moved(self, changelog: str, tables: Mapping[str, Collection[str]]) -> None:
        """Refuse a table with entries in another stream's changelog, because it would begin empty in this stream.

        Args:
            changelog: name of the stream's changelog topic.
            tables: names of the program's tables by stream.

        Raises:
            SettingsError: an earlier version of the program had a table in another stream.
        """
        known = self._claims.get(changelog)
        left = set(tables.get(self._name, ())) - set(known.tables if known is not None else ())
        homes = {
            topic: each
            for topic, each in sorted(self._claims.items())
            if each.app == self._settings.app and each.part == CHANGELOG and each.stream != self._name
        }
        kept = {table for each in homes.values() for table in each.tables if table in tables.get(each.stream, ())}
        for topic, home in homes.items():
            moved = sorted((left - kept) & set(home.tables))
            if moved and partition_counts(admin_client(self._options), [topic]):
                raise SettingsError(
                    f"table {moved[0]}: an earlier version of the program has this table in stream {home.stream!r}, "
                    f"and this version in stream {self._name!r}. The table's entries are in {topic}, so the table "
                    "would begin empty here. Run the earlier version, or keep the agents, names and topics that the "
                    "table's stream comes from. To begin with an empty table, give it a new name; to fill it from all "
                    "records, see Back-filling in docs/guide/agents-deploy.md"
                )

    def claim(
        self, changelog: str, partitions: int, by: str = "", reason: str = "", tables: Iterable[str] = ()
    ) -> dict[str, str]:
        """Claim the output, changelog and duplicates of the stream, which must exist.

        Args:
            changelog: name of the stream's changelog topic.
            partitions: partition count of the input and the changelog.
            tables: names of the program's tables in the stream.
            by: operator who decided to claim them in spite of other claims; "" without such a decision.
            reason: operator's reason.

        Returns:
            topic id at the time of the claim, by topic, as Kafka's tools print it.

        Raises:
            TopicTaken: another application or stream has claimed a topic, or another program has written to it.
            TopicMissing: a topic was deleted a moment ago.
            BrokerUnavailable: Kafka did not answer.
        """
        wanted = {self._stream.output: OUTPUT, changelog: CHANGELOG}
        if self._stream.duplicates is not None:
            wanted[self._stream.duplicates] = DUPLICATES
        ids = {topic: self.id_of(topic) for topic in wanted}

        def decide(claims: Claims) -> dict[str, WriterClaim]:
            known = claims.get(changelog)
            had = known.tables if known is not None and known.id == ids[changelog] else ()
            all_tables = tuple(sorted({*had, *tables}))
            made = {
                topic: WriterClaim(
                    *(self._settings.app, self._name, part, ids[topic], now(), by, reason),
                    partitions=partitions if part == CHANGELOG else 0,
                    tables=all_tables if part == CHANGELOG else (),
                )
                for topic, part in wanted.items()
                if by or self._is_to_be_claimed(topic, part, ids[topic], claims.get(topic), changelog)
            }
            if known is not None and changelog not in made and known.id == ids[changelog]:
                # Version 0.1.0 noted neither of the two.
                noted = msgspec.structs.replace(known, partitions=known.partitions or partitions, tables=all_tables)
                if noted != known:
                    made[changelog] = noted
            return made

        claims = claim(self._settings, self._bootstrap, decide)
        return {topic: claims[topic].id for topic in wanted}

    def _is_to_be_claimed(
        self, topic: str, part: str, topic_id: str, known: WriterClaim | None, changelog: str
    ) -> bool:
        app, name = self._settings.app, self._name
        if known is not None and known.is_of(app, name) and known.part == part:
            return False  # also where the topic is another one now: its lanes say so and halt
        is_new = not self._has_records(topic)
        if known is not None and not (is_new and known.id != topic_id):
            raise taken(topic, known, app, name)
        if part == DUPLICATES and known is None and not is_new:
            raise TopicTaken(
                f"{topic}: has records, and stream {name!r} of application {app!r} has never claimed it for its "
                "duplicates, so another program wrote them. Its records and the stream's duplicates would be mixed. "
                f"Name a new or an empty topic in streams.{name}.duplicates"
            )
        if part == OUTPUT and known is None and not (is_new or self._has_processed(changelog)):
            raise TopicTaken(
                f"{topic}: has records, and stream {name!r} of application {app!r} has never committed anything: "
                "another program wrote them, and events may count twice. If the application or the stream was renamed, "
                f"put the old name back. If the records belong there, run `ratchet resume --stream {name} --adopt "
                "--from earliest|latest|OFFSET --reason TEXT --execute`"
            )
        return True

    def id_of(self, topic: str) -> str:
        """Return the topic's id, as Kafka's tools print it.

        Raises:
            TopicMissing: the topic was deleted a moment ago.
        """
        admin = admin_client(self._options)
        found = describe_topic(admin, topic, timeout_s=self._settings.kafka_timeout_s, say=lambda _: None)
        if found is None:
            raise TopicMissing(
                f"{topic}: was deleted while this program checked it. Find out why, and start the program again"
            )
        return found.id.translate(FOR_URLS)

    def _has_records(self, topic: str) -> bool:
        """Return True if anything was ever written to the topic."""
        with consumer(self._options, self._settings.app) as client:
            partitions = self._found.get(topic, 0)
            return any(held.end > 0 for held in offset_ranges(client, topic, partitions, ASK_S, NEW_TOPIC_S))

    def _has_read(self, changelog: str) -> bool:
        """Return True if the changelog has processed records, or names the input as its own."""
        if not self._has_records(changelog):
            return False
        owners = self._first_owners(changelog)
        inputs = [each.topics.get(INPUT) for each in owners or ()]
        return owners is None or any(each is not None and each.name == self._stream.input for each in inputs)

    def _has_processed(self, changelog: str) -> bool:
        """Return True if the stream has processed a record, or has lost the changelog that would show it."""
        if self._has_records(changelog):
            return self._first_owners(changelog) is None
        return self._has_committed()

    def _first_owners(self, changelog: str) -> list[Owner] | None:
        """Return the owner entries of a changelog without processed records or decisions; None if it has any."""
        with consumer(self._options, self._settings.app) as client:
            ranges = enumerate(offset_ranges(client, changelog, self._found[changelog], ASK_S, NEW_TOPIC_S))
            spans = {number: held for number, held in ranges if held.first < held.end}
            owners = []
            for entry in records_between(client, changelog, spans, timeout_s=self._settings.kafka_timeout_s):
                try:
                    if shows_work(entry):
                        return None
                    if entry.key() == OWNER:
                        owners.append(Owner.unpack(entry.value() or b""))
                except (OwnerDiffers, StateError):
                    return None  # whatever another program or version has written, it is no first start
            return owners

    def _has_committed(self) -> bool:
        """Return True if the group has committed offsets of the input in a lane's transaction."""
        topic = self._stream.input
        if topic not in self._found:
            return False
        group = ask_group(self._bootstrap, self._settings, ASK_S)
        return any(name == topic for name, _ in group.committed)


def names_of(settings: Settings, name: str) -> list[str]:
    """Return every topic name that can belong to a stream."""
    stream, app = settings.streams[name], settings.app
    return [
        stream.input,
        *stream.writes,
        changelog_name(app, name),
    ]
