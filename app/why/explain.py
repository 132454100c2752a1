"""Trace of a record: its arrivals (records of the input), their verdicts, and their results.

The verdicts are computed by the rule that verify uses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, cast

from kafka_ratchet.app.repartition import RepartitionSettings, arrives_in
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.verify.compare import NO_SEQUENCE, UNKNOWN_LAST, ExpectedPartition
from kafka_ratchet.app.verify.decided import DecidedPartition, Rules, legs_now
from kafka_ratchet.app.verify.dropped import first_kept
from kafka_ratchet.app.verify.legs import Leg
from kafka_ratchet.app.verify.policies import skipped_by_decision
from kafka_ratchet.app.verify.reading import TopicReader
from kafka_ratchet.app.verify.report import Report
from kafka_ratchet.app.verify.rule import RecordView
from kafka_ratchet.app.verify.state import Baseline
from kafka_ratchet.app.verify.windows import judging_of
from kafka_ratchet.app.why.answer import ARRIVALS_MOST, Answer, InputRecord, RecordPosition, moment, shown
from kafka_ratchet.app.why.changelog import Log, read_log
from kafka_ratchet.app.why.follow import ResultSearch, is_of_agents, newest_replacing
from kafka_ratchet.app.why.origin import OriginHeaders, origin_of
from kafka_ratchet.app.why.scan import Scan, Watch
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.rule.identity import Identity
from kafka_ratchet.rule.verdicts import DROPPED, DUPLICATE, SKIPPED, UNJUDGED, WAITING, Verdict
from kafka_ratchet.tables.edits import FORGET
from kafka_ratchet.transport.owner import INPUT


class Explanation:
    """Reader that traces records of one stream.

    Raises:
        SettingsError: the stream is an internal one, which only copies records to another stream (`repartition_by`).
        TopicMissing: a topic of the stream does not exist.
        BrokerUnavailable: Kafka does not answer.
    """

    def __init__(
        self,
        settings: Settings,
        name: str,
        bootstrap: str,
        *,
        limit_s: float,
        watch: Watch,
        limit_bytes: int | None = None,
    ) -> None:
        """Connect to Kafka, and check that the stream's topics exist.

        Args:
            settings: all settings.
            name: name of the stream.
            bootstrap: host:port[,host:port].
            limit_s: maximum seconds of reading.
            watch: function called with the number of offsets read so far, and the number of all offsets to read.
            limit_bytes: maximum bytes of keys and values to read; None: without limit.
        """
        self._settings, self._name, self._bootstrap = settings, name, bootstrap
        self._stream = stream = settings.streams[name]
        if isinstance(stream, RepartitionSettings):
            raise SettingsError(f"streams.{name}: is internal. Name the stream it belongs to: --stream {stream.of}")
        self._reader = TopicReader(settings, stream, bootstrap)
        self._rules = Rules(stream, self._reader.letters_topic())
        self._rule = self._rules.of()
        self._scan = Scan(self._reader, limit_s, watch, limit_bytes=limit_bytes)
        self._arrives_in = arrives_in(settings.streams, name)
        self._logs: dict[int, Log] = {}
        self._against: int | None = None
        """Last sequence of the identity just before the last judged record; None: it had none, or unknown."""
        self._look_at(())

    def _look_at(self, numbers: Collection[int]) -> None:
        """Read first offsets and ends of some partitions; a topic may have very many."""
        self._ranges = self._reader.offset_ranges(numbers)
        where = self._settings, self._name, self._bootstrap, self._reader
        self._following = ResultSearch(*where, self._ranges, self._rule, self._scan)

    def close(self) -> None:
        """Close the Kafka clients."""
        self._reader.close()

    def of_identity(
        self,
        identity: bytes,
        sequence: int | None,
        partitions: Sequence[int] | None = None,
        judged_to: Mapping[int, int] | None = None,
        through: RecordPosition | None = None,
    ) -> Answer:
        """Return the answer about all records of an identity, or about those with one sequence.

        Args:
            identity: bytes of the identity.
            sequence: sequence of the records; None: any.
            partitions: input partitions to search; None: all.
            judged_to: offset by partition. The partition's worker has judged all records before this offset without
                ever seeing the identity. If no record from the offset on has the identity either, the partition is left
                out, and the answer says so.
            through: as in `ResultSearch.follow`.

        Raises:
            SettingsError: a partition does not exist.
            TransportError: a partition cannot be read.
        """
        if partitions:  # the least and the largest are enough: each is a question to Kafka about all partitions
            self._require(self._stream.input, min(partitions))
            self._require(self._stream.input, max(partitions))
        answer = Answer(self._name, self._asked(identity, sequence), identity, sequence)
        numbers = range(self._reader.partitions) if partitions is None else partitions
        if judged_to:
            numbers = self._where_it_can_be(answer, numbers, judged_to)
        if not set(numbers) <= self._ranges.input_ends.keys():
            self._look_at(numbers)
        ranges = self._ranges
        spans = [(ranges.input_begins, ranges.input_ends), (ranges.output_begins, ranges.output_ends)]
        self._scan.total = sum(ends[number] - begins[number] for begins, ends in spans for number in numbers)
        for number in numbers:
            log = self._log(number, identity)
            self._arrivals(answer, number, log, identity, sequence)
        span = {number: ranges.input_ends[number] for number in numbers}
        self._blocked(answer, self._stream.input, span, ranges.input_high, identity, sequence)
        if not answer.arrivals and (cut := [number for number in numbers if ranges.input_begins[number]]):
            answer.limits.append(
                f"{self._stream.input} partition {cut[0]} begins at offset {ranges.input_begins[cut[0]]:,}: earlier "
                "records are deleted, and cannot be found"
            )
        if self._arrives_in != self._stream.input:
            self._on_their_way(answer, identity, sequence)
        self._following.follow(answer, self._logs, through)
        return self._without_sequences(answer)

    def _where_it_can_be(self, answer: Answer, numbers: Sequence[int], judged_to: Mapping[int, int]) -> list[int]:
        """Return the partitions that can have a record of the identity.

        In a partition with an offset in `judged_to`, the records from that offset on are searched. If none has the
        identity, the partition is left out, and the answer says so.
        """
        there = set[int]()
        waiting = self._reader.waiting({number: judged_to[number] for number in numbers if number in judged_to})
        for number, record in self._scan.between(self._stream.input, waiting):
            found = self._rule.identify(record)
            if found is not None and found[0] == answer.identity:
                there.add(number)
        if left_out := waiting.keys() - there:
            answer.read_all = False
            answer.limits.append(
                f"searched only unread records in {len(left_out):,} of {self._reader.partitions:,} partitions, because "
                "their workers have never seen the identity"
            )
        return [number for number in numbers if number not in left_out]

    def of_record(self, topic: str, partition: int, offset: int) -> Answer:
        """Return the answer about a record in one of the stream's topics.

        Raises:
            SettingsError: the topic does not belong to the stream, or the partition does not exist.
            TransportError: a partition cannot be read.
        """
        stream = self._stream
        topics = dict.fromkeys((self._arrives_in, stream.input, *stream.writes))
        if topic not in topics:
            raise SettingsError(f"stream {self._name} has no topic {topic!r}: it has {', '.join(topics)}")
        self._require(topic, partition)
        place = RecordPosition(topic, partition, offset)
        record = self._scan.one(topic, partition, offset)
        if record is None:
            if (waits := self._waits(place)) is not None:
                return waits
            nothing = Answer(self._name, str(place))
            nothing.limits.append(
                f"{place}: there is no committed record. It is deleted, not written yet, part of an aborted "
                "transaction, or the end marker of one"
            )
            return nothing
        if topic == stream.input:
            self._look_at([partition])
            return self._of_input(place, record)
        if topic in (stream.output, self._arrives_in):
            return self._of_output(place, record)
        origin = origin_of(record.headers)
        if origin is None or origin.topic != stream.input or origin.partition >= self._reader.partitions:
            nothing = Answer(self._name, str(place))
            nothing.limits.append(
                f"{place}: its headers do not name a record of {stream.input}: Ratchet did not put it there"
            )
            return nothing
        if (gone := self._of_former_input(place, origin)) is not None:
            return gone
        answer = self.of_record(stream.input, origin.partition, origin.offset)
        answer.asked = str(place)
        return answer

    def _of_former_input(self, place: RecordPosition, origin: OriginHeaders) -> Answer | None:
        """Return the answer about a dead letter or duplicate from a deleted input topic; None for any other record."""
        record = self._scan.one(self._stream.input, origin.partition, origin.offset)
        if record is None or origin.partition != place.partition:
            return None
        found = self._rule.identify(record)
        log = self._log(place.partition, b"" if found is None else found[0])
        made = newest_replacing(log, INPUT)
        if made is None:
            return None
        decision, mark = made
        end = mark.dead_letters
        if place.topic == self._stream.duplicates:
            end = first_kept(log.owner, mark, place.topic, self._reader.topic_id(place.topic))
        if place.offset >= end:
            return None
        answer = Answer(self._name, str(place))
        answer.limits.append(
            f"{place}: its record was at offset {origin.offset:,} of a former {origin.topic}, and is deleted: the "
            f"topic was created again, accepted by {decision.by} at {decision.at}: {decision.reason}"
        )
        return answer

    def of_blocked(self, identity: bytes, sequence: int | None, partition: int | None = None) -> Answer:
        """Return the answer about the identity's records that an open transaction holds back.

        Args:
            identity: bytes of the identity.
            sequence: sequence of the records; None: any.
            partition: input partition to search; None: all.

        Raises:
            TransportError: a partition cannot be read.
        """
        answer = Answer(self._name, self._asked(identity, sequence), identity, sequence)
        numbers = range(self._reader.partitions) if partition is None else [partition]
        self._look_at(numbers)
        ranges = self._ranges
        ends = {number: ranges.input_ends[number] for number in numbers}
        self._blocked(answer, self._stream.input, ends, ranges.input_high, identity, sequence)
        if self._arrives_in != self._stream.input:
            spans = self._reader.spans(self._arrives_in)
            there = {number: end for number, (_, end) in spans.items()}
            self._blocked(answer, self._arrives_in, there, None, identity, sequence)
        answer.read_all = not self._scan.stopped
        return answer

    def _blocked(
        self,
        answer: Answer,
        topic: str,
        ends: Mapping[int, int],
        high: Mapping[int, int] | None,
        identity: bytes,
        sequence: int | None,
    ) -> None:
        """Add the identity's records after the last stable offset, which workers cannot read yet."""
        for each in self._reader.blocked(topic, ends, high):
            answer.limits.append(str(each))
            committed = self._reader.committed_of(topic, each.partition + 1)[each.partition]
            for offset, record in self._scan.records(topic, each.partition, each.end, each.start, committed=False):
                found = self._rule.identify(record)
                if found is None or found[0] != identity or sequence not in (None, found[1]):
                    continue
                if len(answer.arrivals) == ARRIVALS_MOST:
                    answer.more += 1
                    continue
                place = RecordPosition(topic, each.partition, offset)
                arrival = self._waiting(place, record, found[1], str(each))
                arrival.lag = max(0, offset - committed)
                answer.arrivals.append(arrival)

    def _waits(self, place: RecordPosition) -> Answer | None:
        """Return the answer about a record that an open transaction holds back; None for any other record."""
        stable_end = (self._reader.span(place.topic, place.partition) or (0, 0))[1]
        if place.offset < stable_end:
            return None
        record = self._scan.one(place.topic, place.partition, place.offset, committed=False)
        blocked = self._reader.blocked(place.topic, {place.partition: stable_end})
        if record is None or not blocked:
            return None
        answer = Answer(self._name, str(place))
        if place.topic not in (self._stream.input, self._arrives_in):
            answer.limits.append(f"{place}: it is not committed yet. {blocked[0]}")
            return answer
        found = self._rule.identify(record)
        if found is not None:
            answer.identity, answer.sequence = found
        arrival = self._waiting(place, record, None if found is None else found[1], str(blocked[0]))
        committed = self._reader.committed_of(place.topic, place.partition + 1)[place.partition]
        arrival.lag = max(0, place.offset - committed)
        answer.arrivals.append(arrival)
        return self._without_sequences(answer)

    def _waiting(self, place: RecordPosition, record: RecordView, sequence: int | None, blocked: str) -> InputRecord:
        arrival = InputRecord(place, moment(record.timestamp_ms), sequence, WAITING, blocked=blocked)
        arrival.notes.append(
            "if the record itself is part of a transaction, it counts once that transaction is committed"
        )
        return arrival

    def _of_output(self, place: RecordPosition, record: RecordView) -> Answer:
        found = self._rule.identify(record)
        if found is None:
            nothing = Answer(self._name, str(place))
            nothing.limits.append(
                f"{place}: it has no identity or no sequence, and cannot be identified in another topic"
            )
            return nothing
        # After `repartition_by` a record is judged in another partition than its first.
        numbers = [place.partition] if place.topic == self._stream.output else None
        answer = self.of_identity(*found, numbers, through=place)
        answer.asked = str(place)
        return answer

    def _of_input(self, place: RecordPosition, record: RecordView) -> Answer:
        found = self._rule.identify(record)
        if found is None:
            return self._of_invalid(place, record)
        log = self._log(place.partition, found[0])
        if (kept := self._following.kept_at(place, log)) is not None:
            return self._of_kept(place, record, found, *kept, log)
        answer = self.of_identity(*found, [place.partition])
        answer.asked = str(place)
        return answer

    def _of_invalid(self, place: RecordPosition, record: RecordView) -> Answer:
        """Return the answer about an input record without a valid identity or sequence."""
        answer, log = Answer(self._name, str(place)), self._log(place.partition, b"")
        legs = self._legs(log, place.partition)
        leg = next((each for each in reversed(legs) if each.start <= place.offset < each.end), legs[-1])
        expected = self._expected(log, place.partition, leg, None)
        verdict = self._verdict(expected, place, record)
        arrival = InputRecord(place, moment(record.timestamp_ms), None, verdict)
        answer.arrivals.append(arrival)
        if verdict == WAITING:
            self._note_wait(arrival)
        if verdict == UNJUDGED and not is_of_agents(log):
            arrival.notes.append("it was forwarded; without a sequence, its record in the output cannot be found")
        self._following.follow(answer, self._logs)
        return answer

    def _of_kept(
        self,
        place: RecordPosition,
        record: RecordView,
        found: tuple[bytes, int],
        kept: RecordPosition,
        origin: OriginHeaders,
        log: Log,
    ) -> Answer:
        """Return the answer about a record in the topic of duplicates, from its headers alone."""
        identity, sequence = found
        answer = Answer(self._name, str(place), identity, sequence)
        verdict = cast(Verdict, origin.verdict if origin.verdict in DROPPED else DUPLICATE)
        answer.arrivals.append(
            InputRecord(place, moment(record.timestamp_ms), sequence, verdict, origin.last_sequence, kept=kept)
        )
        answer.limits.append(
            f"the input was not read, as {kept.topic} has the record: ask for its identity and sequence to see its "
            "other arrivals"
        )
        self._following.follow(answer, self._logs)
        return self._without_sequences(answer)

    def _without_sequences(self, answer: Answer) -> Answer:
        """Return the answer; remove its sequences if the stream's records have none."""
        if self._stream.sequence == "none":
            answer.sequence = None
            for each in answer.arrivals:
                each.sequence = each.against = None
        return answer

    def _arrivals(self, answer: Answer, number: int, log: Log, identity: bytes, sequence: int | None) -> None:
        """Add the identity's records in one partition to the answer, with verdicts computed again."""
        topic, ranges = self._stream.input, self._ranges
        begin = ranges.input_begins[number]
        arrivals: list[InputRecord] = []
        for place, record, expected, note in self._read(log, number):
            found = self._rule.identify(record)
            if found is None or found[0] != identity:
                continue
            last = NO_SEQUENCE if expected is None else expected.last_of(identity, place.offset)
            self._against = last if last >= 0 else None
            verdict = SKIPPED if expected is None else self._verdict(expected, place, record)
            if sequence is not None and found[1] != sequence:
                continue
            if len(answer.arrivals) + len(arrivals) == ARRIVALS_MOST:
                answer.more += 1
                continue
            judged = verdict not in (UNJUDGED, SKIPPED, WAITING)
            arrival = InputRecord(
                place, moment(record.timestamp_ms), found[1], verdict, self._against if judged else None
            )
            arrival.notes += [note] if note else []
            if verdict == WAITING:
                self._note_wait(arrival)
            arrivals.append(arrival)
        answer.arrivals += arrivals
        if begin and arrivals:
            answer.limits.append(
                f"{topic} partition {number} begins at offset {begin:,}: earlier records are deleted, so the first of "
                "these arrivals may be a repeat of one of them"
            )
        if self._stream.is_bounded and any(each.verdict in DROPPED for each in arrivals):
            answer.limits.append(
                "workers forget identities of this stream (max_identities, inactive_after_s), so that a later copy of "
                "a record passes as new. The verdicts here do not take that into account"
            )
        answer.limits += [f"the identity was forgotten at {moment(at)} (partition {number})" for at in log.forgotten]
        made = newest_replacing(log, INPUT)
        edits = log.edits[made[1].edits :] if made is not None else log.edits  # earlier ones are of a deleted input
        told = [edit for edit in edits if edit.has_changed and (edit.kind != FORGET or edit.name == identity)]
        answer.limits += [f"before {topic} partition {number} offset {edit.position:,}: {edit}" for edit in told]

    def _on_their_way(self, answer: Answer, identity: bytes, sequence: int | None) -> None:
        """Add to the answer the identity's records that wait to be repartitioned (`repartition_by`)."""
        topic = self._arrives_in
        answer.limits.append(
            f"places are those of {self._stream.input}, where records of {topic} are judged (repartition_by)"
        )
        spans = self._reader.spans(topic)
        committed = self._reader.committed_of(topic, len(spans))
        self._blocked(answer, topic, {number: end for number, (_, end) in spans.items()}, None, identity, sequence)
        for number, (first, end) in spans.items():
            begin = max(first, committed[number])
            for offset, record in self._scan.records(topic, number, end, begin):
                found = self._rule.identify(record)
                if found is not None and found[0] == identity and sequence in (None, found[1]):
                    place = RecordPosition(topic, number, offset)
                    waits = InputRecord(place, moment(record.timestamp_ms), found[1], WAITING, lag=offset - begin)
                    answer.arrivals.append(waits)

    def _read(
        self, log: Log, number: int
    ) -> Iterator[tuple[RecordPosition, RecordView, ExpectedPartition | None, str]]:
        """Yield a partition's input records in the order of the workers' reading.

        After operators' moves of the position, workers have read the input in several parts, called legs.

        Yields:
            place, record, comparison with the verdict on the record (None: an operator skipped it), note about the leg
        """
        topic, ranges = self._stream.input, self._ranges
        legs = self._legs(log, number)
        before: tuple[ExpectedPartition, Leg] | None = None
        for leg in legs:
            expected = self._expected(log, number, leg, before)
            end = ranges.input_ends[number] if leg is legs[-1] else leg.end
            start = expected.baseline.input_from
            note = self._note(log, leg) if before is not None and start < before[1].end else ""
            for offset, record in self._scan.records(topic, number, end, start):
                yield RecordPosition(topic, number, offset), record, expected, note
            # The next leg begins with the last sequences of this one; its output is not read here.
            expected.take_all_as_seen(Report(self._name))
            before = expected, leg
        for skip in skipped_by_decision(log.owner) if len(legs) > 1 else ():
            for offset, record in self._scan.records(topic, number, skip.end, max(skip.start, legs[0].start)):
                yield RecordPosition(topic, number, offset), record, None, ""

    def _legs(self, log: Log, number: int) -> list[Leg]:
        begin, end = self._ranges.input_begins[number], self._ranges.committed_to[number]
        found = legs_now(log.owner, Baseline.after_retention(begin, 0), end)
        rule = None if log.owner is None else log.owner.rule
        return [each for each in found if each.end > begin or each is found[-1]] or [
            Leg(begin, max(begin, end), rule=rule)
        ]

    def _note(self, log: Log, leg: Leg) -> str:
        decisions = log.owner.decisions if log.owner is not None else ()
        made = next((each for each in decisions if each.mark is leg.since), None)
        return "" if made is None else f"read again, by decision of {made.by} at {made.at}: {made.reason}"

    def _expected(
        self, log: Log, number: int, leg: Leg, before: tuple[ExpectedPartition, Leg] | None
    ) -> ExpectedPartition:
        unjudged = [interval for interval in log.intervals if not interval.deduplicate]
        first = Baseline.after_retention(self._ranges.input_begins[number], 0)
        decided = DecidedPartition(self._stream, self._reader, self._rules, self._ranges, Report(self._name), number)
        expected = ExpectedPartition(
            self._rules.of(leg.rule),
            number,
            leg.intervals(unjudged),
            decided.baseline(leg, first, before, unjudged, log.edits, log.owner),
            skipped_by_decision(log.owner) if leg.since is None and leg.until is None else (),
            leg.edits(log.edits),
            judging_of(log.owner),
            on_dropped=self._take_against,
        )
        if before is not None:
            expected.continue_windows(before[0])
        return expected

    def _take_against(self, offset: int, record: RecordView, verdict: str, against: int) -> None:
        if against != UNKNOWN_LAST:
            self._against = against if against >= 0 else None

    def _verdict(self, expected: ExpectedPartition, place: RecordPosition, record: RecordView) -> Verdict:
        if place.offset >= self._ranges.committed_to[place.partition]:
            return WAITING
        return cast(Verdict, expected.add_input(place.offset, record, Report(self._name)))

    def _note_wait(self, arrival: InputRecord) -> None:
        place = arrival.at
        arrival.lag = place.offset - max(
            self._ranges.committed_to[place.partition], self._ranges.input_begins[place.partition]
        )

    def _log(self, number: int, identity: bytes) -> Log:
        if number not in self._logs:
            where = self._settings, self._reader, self._name, number
            self._logs[number] = read_log(*where, identity, self._scan)
        return self._logs[number]

    def _require(self, topic: str, number: int) -> None:
        count = self._reader.partitions if topic == self._stream.input else self._reader.count(topic)
        if not 0 <= number < count:
            raise SettingsError(f"{topic} has {count} partitions, 0 to {count - 1}: there is no partition {number}")

    def _asked(self, identity: bytes, sequence: int | None) -> str:
        kind = self._stream.identity
        who: Any = "the partition" if kind == Identity.PARTITION else f"{kind} {shown(identity)!r}"
        return who if sequence is None else f"{who}, sequence {sequence}"
