"""`ratchet dead-letters replay`: sends dead letters to the stream's input again, exactly once each.

There is one transaction for each batch of letters, under one transactional id for the stream:

    1. fence       an earlier replay is stopped, and its open transaction ended
    2. read        the replayed letters, from their topic (`replayed.py`)
    3. choose      selected letters, and not among them
    4. produce     their records to the input, and the note of the replay to that topic
    5. commit      both, or neither

After any failure the next call begins at 1 and finds its progress in 2.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

import msgspec
import structlog

from kafka_ratchet.app.dead_letters.letters import CONNECTION, Letter, letter_at
from kafka_ratchet.app.dead_letters.original import Original, encode, original_of
from kafka_ratchet.app.dead_letters.reading import LetterTopic, Wanted
from kafka_ratchet.app.dead_letters.replayed import Place, Replayed
from kafka_ratchet.app.names import replay_group, replay_id, replayed_topic
from kafka_ratchet.app.repartition import arrivals_of, arrives_in
from kafka_ratchet.app.status.cluster_view import lookup
from kafka_ratchet.app.status.group import describe_group
from kafka_ratchet.app.worker.claims import read_claims
from kafka_ratchet.app.worker.topics import config_of, prepare_single
from kafka_ratchet.errors import Aborted, Fenced, SettingsError, TopicMissing, TopicTaken
from kafka_ratchet.producers import admin_client, partition_of
from kafka_ratchet.rule.identity import Identity
from kafka_ratchet.transport.batch.encoding import encode_entries
from kafka_ratchet.transport.lane_spec import letters_in
from kafka_ratchet.transport.transactions.crash_points import crash_point
from kafka_ratchet.transport.transactions.producer import TransactionalProducer
from kafka_ratchet.transport.transactions.states import State

log = structlog.get_logger(__name__)

LETTERS_AT_ONCE: Final = 500
BYTES_AT_ONCE: Final = 4 << 20
"""Bytes sent by one transaction."""
MOST_REPLAYS: Final = 10
"""Most replays of a record, with `again`: a scheduled command would send it round for ever."""
TRIES: Final = 5
TRIES_TO_ASK: Final = 20


class Options(msgspec.Struct, frozen=True):
    """Options of a replay.

    again: also replay letters of records already replayed once. unjudged: replayed records are not deduplicated.
    now: give records the present time instead of their own. of_app: also replay letters from agents of this
    application, the former owner of the topics; "" for none.
    """

    again: bool = False
    unjudged: bool = False
    now: bool = False
    of_app: str = ""


class Counts(msgspec.Struct):
    """Counts of the selected letters.

    to_replay: letters to replay. done: already replayed. held_back: letters of records already replayed once.
    too_often: such letters after MOST_REPLAYS replays. others: letters of another input or application, and other
    records. too_old: letters to replay, older than the input's retention.
    """

    to_replay: int = 0
    done: int = 0
    held_back: int = 0
    too_often: int = 0
    others: int = 0
    too_old: int = 0


class Outcome(msgspec.Struct):
    """Result of `ratchet dead-letters replay`."""

    stream: str
    topic: str
    input: str
    dry_run: bool
    replayed: int
    counts: Counts


class Chosen(NamedTuple):
    """Letter to replay, with its place, the target partition and the record to send."""

    place: Place
    to: int
    record: Original


class Replay:
    """Replay of a stream's dead letters to its input."""

    def __init__(self, letters: LetterTopic, wanted: Wanted, options: Options, bootstrap: str) -> None:
        """Prepare a replay; reads no letters yet."""
        self._letters, self._wanted, self._options = letters, wanted, options
        self._bootstrap = bootstrap
        self._admin = admin_client({"bootstrap.servers": bootstrap, **letters.settings.kafka})
        # The records of a stream with `repartition_by` are placed by the stream that arrives in its internal topic.
        self._input = arrives_in(letters.settings.streams, letters.name)
        if self._input not in letters.topics:
            raise TopicMissing(
                f"stream {letters.name}: the topic {self._input}, where the dead letters are to be sent, does not "
                "exist. Create it, or start a worker"
            )
        self._partitions = letters.topics[self._input].partitions
        self._state = replayed_topic(letters.settings.app, letters.name)
        self._oldest_ms = self._kept_since()
        self._sent = 0
        self._in_doubt: list[Place] = []
        """Letters of the transaction with an unknown end."""

    async def plan(self) -> Outcome:
        """Return the outcome that `execute` would have, without changing anything.

        Raises:
            TopicTaken: the input is written by another stream or application.
        """
        await asyncio.to_thread(self._refuse_output_of_another)
        return self._outcome(await self._count(await self._letters.replayed()), dry_run=True)

    async def execute(self) -> Outcome:
        """Send the selected letters to the stream's input, each exactly once.

        Raises:
            SettingsError: letters are older than the input's retention; or a worker does not support replays.
            Fenced: another replay of this stream has started.
            Aborted: several attempts failed; the letters replayed so far are recorded, and the next call continues.
            RecordTooLarge: a record does not fit the input any more.
            TopicTaken: the input is written by another stream or application.
        """
        await asyncio.to_thread(self._refuse_output_of_another)
        await self._refuse_earlier_workers()
        letters, app = self._letters, self._letters.settings.app
        prepare_single(self._admin, letters.settings, self._state, "which dead letters were replayed")
        writes = [(self._input, number) for number in range(self._partitions)] + [(self._state, 0)]
        producer = TransactionalProducer(
            letters.cluster,
            replay_id(app, letters.name),
            replay_group(app, letters.name),
            letters.settings.transaction_timeout_ms,
            writes,
        )
        counts = None
        for left in reversed(range(TRIES)):
            try:
                await producer.initialise()
                crash_point("fenced")
                replayed = await letters.replayed()
                self._sent += sum(place in replayed for place in self._in_doubt)
                self._in_doubt = []
                if counts is None:
                    counts = await self._count(replayed)
                    self._refuse_old(counts)
                await self._send_all(producer, replayed)
                return self._outcome(counts, dry_run=False)
            except Aborted as error:
                if not left:
                    raise
                log.info("trying again", stream=letters.name, reason=str(error))
            except Fenced as error:
                raise Fenced(
                    f"{error}. Another `ratchet dead-letters replay` of this stream has started. Let it finish"
                ) from None
            except BaseException:
                await producer.abort()
                raise
        raise AssertionError  # the last try raises

    def _refuse_output_of_another(self) -> None:
        """Check that no other stream or application writes to the input.

        Raises:
            TopicTaken: another stream or application writes to the input.
        """
        settings, name = self._letters.settings, self._letters.name
        writers = [
            f"stream {other!r} of these settings"
            for other, stream in settings.streams.items()
            if other not in (name, arrivals_of(name)) and self._input in stream.writes
        ]
        claim = read_claims(settings, self._bootstrap).get(self._input)
        if claim is not None and not writers and not claim.is_of(settings.app, name):
            writers.append(str(claim))
        if writers:
            raise TopicTaken(
                f"stream {name}: its input {self._input} is written by {writers[0]}. A record re-sent there "
                "would count twice for every other reader of that topic, so nothing was sent. The records still stand "
                f"in {self._input} at the offsets that the dead letters name (ratchet dead-letters show --stream "
                f"{name}). Where everything of a partition from such an offset on became a dead letter, read it again: "
                f"ratchet resume --stream {name} --partition P --from OFFSET. Otherwise see "
                'docs/guide/dead-letters.md, "A stream that reads another one\'s output"'
            )

    async def _refuse_earlier_workers(self) -> None:
        letters = self._letters
        for left in reversed(range(TRIES_TO_ASK)):
            group = await describe_group(self._bootstrap, letters.settings)
            if not group.members:
                return
            if len(group.workers) == group.members:
                break
            if not left:
                raise SettingsError(
                    f"{group.members - len(group.workers)} of {group.members} members of the workers' group do not "
                    "show if they support replayed records. A worker of an earlier Ratchet would drop them. Try again "
                    "when the group is stable"
                )
            await asyncio.sleep(0.5)  # it is known only while the group is stable
        identity = b"" if letters.stream.identity == Identity.PARTITION else b"?"
        asked = await lookup(self._bootstrap, letters.settings, letters.name, identity, None)
        if asked.cannot_replay is not msgspec.UNSET:
            raise SettingsError(
                "workers of an earlier Ratchet would drop the records, or gave no answer: "
                f"{', '.join(asked.cannot_replay)}. Update them, and check that they can be reached"
            )

    def _outcome(self, counts: Counts, *, dry_run: bool) -> Outcome:
        letters = self._letters
        return Outcome(letters.name, letters.topic, self._input, dry_run, self._sent, counts)

    async def _count(self, replayed: Replayed) -> Counts:
        counts = Counts()
        async for _ in self._choose(replayed, counts, self._wanted.limit):
            pass
        return counts

    def _refuse_old(self, counts: Counts) -> None:
        if counts.too_old and not self._options.now:
            raise SettingsError(
                f"{counts.too_old} of these dead letters are older than retention.ms of {self._input}, so Kafka may "
                "delete their records before a worker reads them. Raise retention.ms, or send them with the "
                "present time: --now"
            )

    def _kept_since(self) -> int | None:
        """Return the age limit of input records in ms; None without a limit.

        Kafka may delete older records at once.
        """
        config = config_of(self._admin, self._input)
        retention = int(config["retention.ms"])
        by_age = "delete" in config["cleanup.policy"] and config["message.timestamp.type"] != "LogAppendTime"
        return time.time_ns() // 1_000_000 - retention if by_age and retention >= 0 else None

    async def _choose(self, replayed: Replayed, counts: Counts, most: int | None) -> AsyncIterator[Chosen]:
        """Yield the selected letters without a replay so far, in order. counts: counts all letters read."""
        async for batch in self._letters.batches(self._wanted):
            for index in range(batch.count):
                letter = letter_at(batch, index)
                if not self._wanted.includes(letter) or not self._may_go(letter, replayed, counts):
                    continue
                if most is not None and counts.to_replay >= most:
                    return
                counts.to_replay += 1
                counts.too_old += self._oldest_ms is not None and letter.timestamp_ms < self._oldest_ms
                time_ms = time.time_ns() // 1_000_000 if self._options.now else letter.timestamp_ms
                record = original_of(batch, index, self._name_of(letter), time_ms, to_all=self._options.unjudged)
                yield Chosen((letter.partition, letter.offset), self._target(letter, batch.key(index)), record)

    def _may_go(self, letter: Letter, replayed: Replayed, counts: Counts) -> bool:
        if not self._letters.has_made(letter, self._options.of_app):
            counts.others += 1
        elif (letter.partition, letter.offset) in replayed:
            counts.done += 1
        elif letter.replays >= MOST_REPLAYS:
            counts.too_often += 1
        elif letter.replays and not self._options.again:
            counts.held_back += 1
        else:
            return True
        return False

    def _name_of(self, letter: Letter) -> str | None:
        """Return the name that a worker recognises a replayed record by.

        None: the record is judged by its sequence.
        """
        by_name = self._options.unjudged or (letter.origin is not None and letter.origin.is_of_agent)
        letters = letters_in(self._letters.settings.app, self._letters.topic, self._letters.id).decode()
        return f"{letters}{letter.partition}/{letter.offset}" if by_name else None

    def _target(self, letter: Letter, key: bytes | None) -> int:
        """Return the partition to send a letter's record to.

        It is the record's former partition, or the key's partition if the former one is missing. In an input with moved
        records it is taken modulo the number of partitions.
        """
        if letter.origin is not None and self._input != self._letters.stream.input:
            return letter.origin.partition % self._partitions
        if letter.origin is not None and letter.origin.partition < self._partitions:
            return letter.origin.partition
        return partition_of(key, b"%d" % letter.partition, self._partitions)

    async def _send_all(self, producer: TransactionalProducer, replayed: Replayed) -> None:
        limits = await self._letters.cluster.message_limits([self._input, self._state], CONNECTION)
        waiting: list[Chosen] = []
        size = 0
        most = None if self._wanted.limit is None else self._wanted.limit - self._sent
        async for chosen in self._choose(replayed, Counts(), most):
            is_other = bool(waiting) and waiting[0].place[0] != chosen.place[0]
            if is_other or len(waiting) == LETTERS_AT_ONCE or size > BYTES_AT_ONCE:
                await self._send(producer, replayed, waiting, limits)
                waiting, size = [], 0
            waiting.append(chosen)
            size += len(chosen.record.body)
        if waiting:
            await self._send(producer, replayed, waiting, limits)

    async def _send(
        self, producer: TransactionalProducer, replayed: Replayed, chosen: list[Chosen], limits: dict[str, int]
    ) -> None:
        """Send letters of one partition in one transaction."""
        places = [each.place for each in chosen]
        targets = sorted({each.to for each in chosen})
        changed = replayed.with_(places)
        producer.begin([*((self._input, number) for number in targets), (self._state, 0)])
        for number in targets:
            for encoded in encode([each.record for each in chosen if each.to == number], limits[self._input]):
                await producer.produce(self._input, number, encoded)
        await producer.delivered()
        crash_point("produced")
        for encoded in encode_entries(replayed.entries(changed), limits[self._state]):
            await producer.produce(self._state, 0, encoded)
        crash_point("logged")
        self._in_doubt = places
        partition, last = places[-1]
        await producer.commit(self._letters.topic, partition, last + 1)
        crash_point("committed")
        self._in_doubt = []
        replayed.accept(changed)
        self._sent += len(chosen)
        log.info("replayed", stream=self._letters.name, partition=partition, letters=len(chosen), to_offset=last)
        if producer.state is State.SPENT:
            raise Aborted(
                f"{producer.transactional_id}: committed, but the id has used up its epochs; the replay starts again"
            )
