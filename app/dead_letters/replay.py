"""`ratchet dead-letters replay`: sends dead letters to the stream's input again, exactly once each.

Each batch of letters is sent in one transaction; all replays of a stream have the same transactional id:

    1. fence       stop an earlier replay, and end its open transaction
    2. read        read the topic of replays, which lists the replayed letters (`replayed.py`)
    3. choose      choose the selected letters, without the replayed ones
    4. produce     write their records to the input, and their partitions and offsets to the topic of replays
    5. commit      commit both writes in one transaction

After a failure, the next call begins with step 1, and finds the committed replays in step 2.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

import msgspec
import structlog

from kafka_ratchet.app.dead_letters.letters import CONNECTION, Letter, letter_at
from kafka_ratchet.app.dead_letters.original import OriginalRecord, encode, original_of
from kafka_ratchet.app.dead_letters.reading import LetterFilter, LetterTopic
from kafka_ratchet.app.dead_letters.replayed import Place, ReplayedLetters
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
"""Approximate maximum of bytes of the records in one transaction."""
MOST_REPLAYS: Final = 10
"""Maximum number of replays of a record, even with `again`. A scheduled command would else replay it for ever."""
TRIES: Final = 5
TRIES_TO_ASK: Final = 20


class Options(msgspec.Struct, frozen=True):
    """Options of a replay.

    again: True: also replay records that became dead letters again after a replay.
    unjudged: True: workers forward the replayed records without judging their sequences.
    now: True: records get the present time as timestamp; False: they keep their own.
    of_app: application that owned the topics before; its agents' letters are replayed too. "": no other.
    """

    again: bool = False
    unjudged: bool = False
    now: bool = False
    of_app: str = ""


class Counts(msgspec.Struct):
    """Counts of the selected letters.

    to_replay: letters to replay; too_old of them are older than the input's retention.
    done: letters with an earlier replay.
    held_back: letters of a record that became a dead letter again after a replay; `again` would replay them.
    too_often: letters of a record with MOST_REPLAYS replays.
    others: records that this stream did not write.
    """

    to_replay: int = 0
    done: int = 0
    held_back: int = 0
    too_often: int = 0
    others: int = 0
    too_old: int = 0


class ReplayResult(msgspec.Struct):
    """Result of `ratchet dead-letters replay`."""

    stream: str
    topic: str
    input: str
    dry_run: bool
    replayed: int
    counts: Counts


class ChosenLetter(NamedTuple):
    """Dead letter to replay, with the record to send, and the input partition to send to (`to`)."""

    place: Place
    to: int
    record: OriginalRecord


class Replay:
    """Replay of a stream's dead letters to its input."""

    def __init__(self, letters: LetterTopic, wanted: LetterFilter, options: Options, bootstrap: str) -> None:
        """Prepare a replay, without reading letters.

        Raises:
            TopicMissing: the stream's input does not exist.
        """
        self._letters, self._wanted, self._options = letters, wanted, options
        self._bootstrap = bootstrap
        self._admin = admin_client({"bootstrap.servers": bootstrap, **letters.settings.kafka})
        # The records of a stream with `repartition_by` are placed by the stream that arrives in its internal topic.
        self._input = arrives_in(letters.settings.streams, letters.name)
        if self._input not in letters.topics:
            raise TopicMissing(
                f"stream {letters.name}: the input {self._input}, to which dead letters are sent again, does not "
                "exist. Create it, or start a worker, which creates it"
            )
        self._partitions = letters.topics[self._input].partitions
        self._state = replayed_topic(letters.settings.app, letters.name)
        self._oldest_ms = self._kept_since()
        self._sent = 0
        self._in_doubt: list[Place] = []
        """Letters in the last transaction, while the outcome of the transaction is unknown."""

    async def plan(self) -> ReplayResult:
        """Return the outcome that `execute` would have; change nothing.

        Raises:
            TopicTaken: the input is written by another stream or application.
        """
        await asyncio.to_thread(self._refuse_output_of_another)
        return self._outcome(await self._count(await self._letters.replayed(self._options.of_app)), dry_run=True)

    async def execute(self) -> ReplayResult:
        """Send the selected letters to the stream's input, each exactly once.

        Raises:
            SettingsError: letters are older than the input's retention; or a worker does not support replays, or gives
                no answer.
            Fenced: another replay of this stream has started.
            Aborted: several attempts failed; the letters replayed so far are recorded, and the next call continues.
            RecordTooLarge: a record with the headers of a replay exceeds the input's max.message.bytes.
            TopicTaken: the input is written by another stream or application.
        """
        await asyncio.to_thread(self._refuse_output_of_another)
        await self._refuse_earlier_workers()
        letters, app = self._letters, self._letters.settings.app
        prepare_single(self._admin, letters.settings, self._state, "the list of replayed dead letters")
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
                replayed = await letters.replayed(self._options.of_app)
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
                    f"{error}. Another `ratchet dead-letters replay` of stream {letters.name} has started, and has "
                    "stopped this one. Let the other one finish"
                ) from None
            except BaseException:
                await producer.abort()
                raise
        raise AssertionError  # the last try raises

    def _refuse_output_of_another(self) -> None:
        """Raise an error if another stream or application writes to the input.

        Raises:
            TopicTaken: another stream or application writes to the input; the message names it.
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
                f"stream {name}: nothing was sent, because its input {self._input} is written by {writers[0]}, and "
                f"each other reader of {self._input} would count the sent records twice. Until retention deletes them, "
                f"the records are there at the offsets that `ratchet dead-letters show --stream {name}` prints. If all "
                "records of a partition from one of these offsets on became dead letters, read the partition again "
                f"from that offset: `ratchet resume --stream {name} --partition P --from OFFSET`. Otherwise see "
                'docs/guide/dead-letters.md, "Input written by another stream"'
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
                    f"nothing was sent: {group.members - len(group.workers)} of {group.members} members of the "
                    f"consumer group {letters.settings.app!r} have no known status address, so it is unknown if they "
                    "support replayed records. A worker of an earlier Ratchet would drop these. Try again after the "
                    "rebalance"
                )
            await asyncio.sleep(0.5)  # it is known only while the group is stable
        identity = b"" if letters.stream.identity == Identity.PARTITION else b"?"
        asked = await lookup(self._bootstrap, letters.settings, letters.name, identity, None)
        if asked.cannot_replay is not msgspec.UNSET:
            raise SettingsError(
                f"nothing was sent: the workers {', '.join(asked.cannot_replay)} run an earlier Ratchet, which would "
                "drop replayed records, or did not answer. Update them, and check that this machine reaches their "
                "status addresses"
            )
        if asked.deduplicate is None:
            raise SettingsError(
                f"nothing was sent: no member of the consumer group {letters.settings.app!r} has answered, so it is "
                "unknown if the members support replayed records. A worker of an earlier Ratchet would drop these. Try "
                f"again. {' '.join(asked.problems)}".rstrip()
            )

    def _outcome(self, counts: Counts, *, dry_run: bool) -> ReplayResult:
        letters = self._letters
        return ReplayResult(letters.name, letters.topic, self._input, dry_run, self._sent, counts)

    async def _count(self, replayed: ReplayedLetters) -> Counts:
        counts = Counts()
        async for _ in self._choose(replayed, counts, self._wanted.limit):
            pass
        return counts

    def _refuse_old(self, counts: Counts) -> None:
        if counts.too_old and not self._options.now:
            raise SettingsError(
                f"nothing was sent: {counts.too_old} of the selected dead letters are older than retention.ms of "
                f"{self._input}, so Kafka may delete their records before a worker reads them. Raise retention.ms, or "
                "give the records the present time with --now"
            )

    def _kept_since(self) -> int | None:
        """Return the least timestamp, in ms, of records that the input's retention keeps.

        None: retention has no time limit, or the broker gives each record a new timestamp.
        """
        config = config_of(self._admin, self._input)
        retention = int(config["retention.ms"])
        by_age = "delete" in config["cleanup.policy"] and config["message.timestamp.type"] != "LogAppendTime"
        return time.time_ns() // 1_000_000 - retention if by_age and retention >= 0 else None

    async def _choose(self, replayed: ReplayedLetters, counts: Counts, most: int | None) -> AsyncIterator[ChosenLetter]:
        """Yield the selected letters to replay, in the order of their topic.

        replayed: letters with an earlier replay
        counts: counts to update with every selected letter, to replay or not
        most: maximum number of letters to yield; None: no limit
        """
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
                yield ChosenLetter((letter.partition, letter.offset), self._target(letter, batch.key(index)), record)

    def _may_go(self, letter: Letter, replayed: ReplayedLetters, counts: Counts) -> bool:
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
        """Return the name of the letter; a worker drops a second record with the same name.

        None: no name is sent, and the worker judges the record by its sequence.
        """
        by_name = self._options.unjudged or (letter.origin is not None and letter.origin.is_of_agent)
        letters = letters_in(self._letters.settings.app, self._letters.topic, self._letters.id).decode()
        return f"{letters}{letter.partition}/{letter.offset}" if by_name else None

    def _target(self, letter: Letter, key: bytes | None) -> int:
        """Return the input partition to send a letter's record to.

        The record goes to the partition that it came from, or to the partition of its key if the input lacks the
        former. With `repartition_by`, the letter names a partition of the internal topic, and the record may go to any
        input partition: its number is that of the internal partition modulo the input's partition count.
        """
        if letter.origin is not None and self._input != self._letters.stream.input:
            return letter.origin.partition % self._partitions
        if letter.origin is not None and letter.origin.partition < self._partitions:
            return letter.origin.partition
        return partition_of(key, b"%d" % letter.partition, self._partitions)

    async def _send_all(self, producer: TransactionalProducer, replayed: ReplayedLetters) -> None:
        limits = await self._letters.cluster.message_limits([self._input, self._state], CONNECTION)
        waiting: list[ChosenLetter] = []
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
        self,
        producer: TransactionalProducer,
        replayed: ReplayedLetters,
        chosen: list[ChosenLetter],
        limits: dict[str, int],
    ) -> None:
        """Send the chosen letters of one dead-letter partition in one transaction."""
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
                f"{producer.transactional_id}: the transaction is committed, but the transactional id has used up its "
                "epochs. The replay starts again with a new producer id"
            )
