"""Finds the arrivals of a record, judges them by verify's rule, and follows each to where it went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.verify.baseline import Baseline
from kafka_ratchet.app.verify.compare import UNTOLD, ExpectedPartition
from kafka_ratchet.app.verify.dropped import Kept
from kafka_ratchet.app.verify.reading import TopicReader
from kafka_ratchet.app.verify.report import Report
from kafka_ratchet.app.verify.rule import RecordView, Rule
from kafka_ratchet.app.verify.skips import skipped_by_decision
from kafka_ratchet.app.why.answer import ARRIVALS_MOST, Answer, Arrival, Place, Transaction, Verdict, moment, shown
from kafka_ratchet.app.why.changelog import Log, read_log, who_wrote
from kafka_ratchet.app.why.origin import Origin, origin_of
from kafka_ratchet.app.why.result import find_rows
from kafka_ratchet.app.why.scan import Scan, Watch
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.tables.identity import SequenceSource
from kafka_ratchet.transport.owner import AGENTS

WRITERS_MOST = 20
"""Arrivals of which it is looked up who wrote their transaction: each asks Kafka once."""
DROPPED = ("duplicate", "too-late", "content-differs")


class Explanation:
    """One question to one stream.

    Raises:
        TopicMissing: a topic of the stream does not exist.
        BrokerUnavailable: Kafka does not answer.
    """

    def __init__(self, settings: Settings, name: str, bootstrap: str, *, limit_s: float, watch: Watch) -> None:
        """Look at the topics.

        Args:
            settings: the whole of them
            name: of the stream
            bootstrap: host:port[,host:port]
            limit_s: seconds that reading may take
            watch: gets how many offsets of how many have been gone through
        """
        self._settings, self._name, self._bootstrap = settings, name, bootstrap
        self._stream = stream = settings.streams[name]
        self._rule = Rule(stream.identity, SequenceSource.parse(stream.sequence), stream.sequence_form)
        self._reader = TopicReader(settings, stream, bootstrap)
        self._ranges = self._reader.offset_ranges()
        self._scan = Scan(self._reader, limit_s, watch)
        self._logs: dict[int, Log] = {}
        self._kept_spans: dict[int, tuple[int, int]] | None = None

    def of_identity(self, identity: bytes, sequence: int | None, partitions: Sequence[int] | None = None) -> Answer:
        """What became of all records of an identity, or of those with one sequence.

        partitions: where they can be; None: in each

        Raises:
            SettingsError: there is no such partition, or the output is made by agents of one's own.
            TransportError: a partition cannot be read.
        """
        numbers = range(self._reader.partitions) if partitions is None else partitions
        for number in numbers:
            self._require(self._stream.input, number)
        ranges = self._ranges
        spans = [(ranges.input_begins, ranges.input_ends), (ranges.output_begins, ranges.output_ends)]
        self._scan.total = sum(ends[number] - begins[number] for begins, ends in spans for number in numbers)
        answer = Answer(self._name, self._asked(identity, sequence), identity, sequence)
        for number in numbers:
            log = self._log(number, identity)
            self._arrivals(answer, number, log, identity, sequence)
        self._follow(answer)
        return answer

    def of_record(self, topic: str, partition: int, offset: int) -> Answer:
        """What became of the record that stands at an offset of the input, or where that of another topic came from.

        Raises:
            SettingsError: it is no topic of the stream, there is no such partition, or the output is made by agents.
            TransportError: a partition cannot be read.
        """
        stream = self._stream
        if topic not in (stream.input, *stream.writes):
            raise SettingsError(
                f"stream {self._name} has no topic {topic!r}: it has {', '.join((stream.input, *stream.writes))}"
            )
        self._require(topic, partition)
        place = Place(topic, partition, offset)
        record = self._scan.one(topic, partition, offset)
        if record is None:
            nothing = Answer(self._name, str(place))
            nothing.limits.append(
                f"{place}: there is no committed record. It is deleted, not written yet, was of a transaction that was "
                "aborted, or marks the end of one"
            )
            return nothing
        if topic == stream.input:
            return self._of_input(place, record)
        if topic == stream.output:
            return self._of_output(place, record)
        origin = origin_of(record.headers)
        if origin is None or origin.topic != stream.input or origin.partition >= self._reader.partitions:
            nothing = Answer(self._name, str(place))
            nothing.limits.append(
                f"{place}: its headers do not name a record of {stream.input}: Ratchet did not put it there"
            )
            return nothing
        answer = self.of_record(stream.input, origin.partition, origin.offset)
        answer.asked = str(place)
        return answer

    def _of_output(self, place: Place, record: RecordView) -> Answer:
        found = self._rule.judge(record)
        if found is None:
            nothing = Answer(self._name, str(place))
            nothing.limits.append(
                f"{place}: it has no identity or no sequence, so it was forwarded while deduplication was off, and "
                "cannot be told apart from others"
            )
            return nothing
        answer = self.of_identity(*found, [place.partition])
        answer.asked = str(place)
        return answer

    def _of_input(self, place: Place, record: RecordView) -> Answer:
        found = self._rule.judge(record)
        if found is None:
            return self._of_invalid(place, record)
        log = self._log(place.partition, found[0])
        if (kept := self._kept_at(place, log)) is not None:
            return self._of_kept(place, record, found, *kept, log)
        answer = self.of_identity(*found, [place.partition])
        answer.asked = str(place)
        return answer

    def _of_invalid(self, place: Place, record: RecordView) -> Answer:
        """Of a record that has no identity or no sequence."""
        answer, log = Answer(self._name, str(place)), self._log(place.partition, b"")
        expected = self._expected(log, place.partition)
        verdict = self._verdict(expected, place, record)
        arrival = Arrival(place, moment(record.timestamp_ms), None, verdict)
        answer.arrivals.append(arrival)
        if verdict == "waiting":
            self._note_wait(arrival)
        if verdict == "unjudged":
            arrival.notes.append("it was forwarded; which record of the output it is cannot be told without a sequence")
        self._follow(answer)
        return answer

    def _of_kept(
        self, place: Place, record: RecordView, found: tuple[bytes, int], kept: Place, origin: Origin, log: Log
    ) -> Answer:
        """Of a record that the topic of duplicates has: its headers say it all, and the input need not be read."""
        identity, sequence = found
        answer = Answer(self._name, str(place), identity, sequence)
        verdict = cast(Verdict, origin.verdict if origin.verdict in DROPPED else "duplicate")
        answer.arrivals.append(
            Arrival(place, moment(record.timestamp_ms), sequence, verdict, origin.last_sequence, kept=kept)
        )
        answer.limits.append(
            f"the input was not read, as {kept.topic} has the record: ask for its identity and sequence to see its "
            "other arrivals"
        )
        self._follow(answer)
        return answer

    def _arrivals(self, answer: Answer, number: int, log: Log, identity: bytes, sequence: int | None) -> None:
        """Judge the identity's records in one partition; another identity's have no bearing on it."""
        topic, ranges = self._stream.input, self._ranges
        begin, end = ranges.input_begins[number], ranges.input_ends[number]
        expected = self._expected(log, number)
        arrivals: list[Arrival] = []
        for offset, record in self._scan.records(topic, number, end, begin):
            found = self._rule.judge(record)
            if found is None or found[0] != identity:
                continue
            place, before = Place(topic, number, offset), expected.last_of(identity)
            self._against: int | None = before if before >= 0 else None
            verdict = self._verdict(expected, place, record)
            if sequence is not None and found[1] != sequence:
                continue
            if len(answer.arrivals) + len(arrivals) == ARRIVALS_MOST:
                answer.more += 1
                continue
            judged = verdict not in ("unjudged", "skipped", "waiting")
            arrival = Arrival(place, moment(record.timestamp_ms), found[1], verdict, self._against if judged else None)
            if verdict == "waiting":
                self._note_wait(arrival)
            arrivals.append(arrival)
        answer.arrivals += arrivals
        if begin and arrivals:
            answer.limits.append(
                f"{topic} partition {number} begins at offset {begin:,}: what came before is deleted, so the first of "
                "these may be a repeat of it"
            )
        if self._stream.is_bounded and any(each.verdict in DROPPED for each in arrivals):
            answer.limits.append(
                "identities of this stream are forgotten (max_identities, inactive_after_s): a record that comes again "
                "after that passes as new, and the verdicts here do not know when that was"
            )
        answer.limits += [f"the identity was forgotten at {moment(at)} (partition {number})" for at in log.forgotten]

    def _expected(self, log: Log, number: int) -> ExpectedPartition:
        if log.owner is not None and log.owner.rule.get("output") == AGENTS:
            raise SettingsError(
                f"streams.{self._name}: its output is what agents of one's own yield, and this follows records that "
                "are forwarded as they came"
            )
        begin = self._ranges.input_begins[number]
        unjudged = [interval for interval in log.intervals if not interval.deduplicate]
        return ExpectedPartition(
            self._rule,
            number,
            unjudged,
            Baseline.after_retention(begin, 0),
            skipped_by_decision(log.owner),
            on_dropped=self._take_against,
        )

    def _take_against(self, offset: int, record: RecordView, verdict: str, against: int) -> None:
        if against != UNTOLD:
            self._against = against if against >= 0 else None

    def _verdict(self, expected: ExpectedPartition, place: Place, record: RecordView) -> Verdict:
        if place.offset >= self._ranges.committed_to[place.partition]:
            return "waiting"
        return cast(Verdict, expected.judge(place.offset, record, Report(self._name)))

    def _note_wait(self, arrival: Arrival) -> None:
        place = arrival.at
        arrival.lag = place.offset - max(
            self._ranges.committed_to[place.partition], self._ranges.input_begins[place.partition]
        )

    # Where they went

    def _follow(self, answer: Answer) -> None:
        partitions = sorted({each.at.partition for each in answer.arrivals})
        for number in partitions:
            mine = [each for each in answer.arrivals if each.at.partition == number]
            if answer.identity is not None and self._stream.forward:
                self._find_forwarded(answer, number, [each for each in mine if each.verdict in ("fresh", "unjudged")])
            self._find_kept(number, [each for each in mine if each.verdict in DROPPED and each.kept is None])
            missing = [each for each in mine if each.verdict == "invalid" or self._is_lettered(each)]
            self._find_letters(number, missing)
            for each in mine:
                self._find_transaction(each, self._logs[number])
        self._find_writers(answer)
        forwarded = [each.forwarded for each in answer.arrivals if each.forwarded is not None]
        results, limits = find_rows(self._settings, self._name, self._bootstrap, forwarded)
        for each in answer.arrivals:
            each.result = results.get(each.forwarded) if each.forwarded is not None else None
        answer.limits += limits
        if self._scan.stopped:
            answer.read_all = False
            answer.limits += [f"the time was up: {each}" for each in self._scan.stopped]

    def _is_lettered(self, arrival: Arrival) -> bool:
        stream = self._stream
        asked = {"too-late": stream.late, "content-differs": stream.conflicts}
        return asked.get(arrival.verdict) == "dead-letter"

    def _find_forwarded(self, answer: Answer, number: int, arrivals: list[Arrival]) -> None:
        """Pair them with the records of the output of their sequence, in order."""
        if not arrivals:
            return
        wanted: dict[int | None, list[Arrival]] = {}
        for each in arrivals:
            wanted.setdefault(each.sequence, []).append(each)
        topic, ranges = self._stream.output, self._ranges
        begin, end = ranges.output_begins[number], ranges.output_ends[number]
        found: dict[int | None, list[Place]] = {}
        left = len(arrivals) if not self._stream.is_bounded and not begin else -1
        for offset, record in self._scan.records(topic, number, end, begin):
            judged = self._rule.judge(record)
            if judged is None or judged[0] != answer.identity or judged[1] not in wanted:
                continue
            found.setdefault(judged[1], []).append(Place(topic, number, offset))
            left -= 1
            if not left:
                break
        for sequence, group in wanted.items():
            places = found.get(sequence, [])
            if begin and len(places) < len(group):
                group = group[len(group) - len(places) :]  # the oldest ones are deleted
            for each, place in zip(group, places, strict=False):
                each.forwarded = place
            if len(places) > len(group):
                extra = ", ".join(f"{place.offset:,}" for place in places[len(group) :][:5])
                answer.limits.append(
                    f"{topic} partition {number} has {len(places)} records of sequence {sequence} (also offsets "
                    f"{extra}), and by the rule {len(group)} had to be forwarded: the identity was forgotten in "
                    "between, or `ratchet verify` says what is wrong"
                )
        for each in arrivals:
            if each.forwarded is None and not self._scan.stopped:
                each.notes.append(f"it is not in {topic}{self._why_absent(number)}")

    def _why_absent(self, number: int) -> str:
        if self._ranges.output_begins[number]:
            return f", which begins at offset {self._ranges.output_begins[number]:,}: what came before is deleted"
        if self._ranges.input_begins[number]:
            return ": it is a repeat of input that is deleted, or `ratchet verify` says what is wrong"
        return ", and by the rule it should be: run `ratchet verify`"

    def _find_kept(self, number: int, arrivals: list[Arrival]) -> None:
        """Look for dropped records in the topic of duplicates."""
        topic = self._stream.duplicates
        if topic is None or not arrivals:
            return
        wanted = {each.at.offset: each for each in arrivals}
        begin, end = self._spans_of_kept().get(number, (0, 0))
        for offset, record in self._scan.records(topic, number, end, begin):
            origin = origin_of(record.headers)
            if origin is None or (origin.topic, origin.partition) != (self._stream.input, number):
                continue
            each = wanted.get(origin.offset)
            if each is not None and each.kept is None:
                each.kept = Place(topic, number, offset)
                each.against = origin.last_sequence if each.against is None else each.against

    def _find_letters(self, number: int, arrivals: list[Arrival]) -> None:
        if not arrivals:
            return
        topic, ranges = self._stream.dead_letters, self._ranges
        wanted = {each.at.offset: each for each in arrivals}
        begin, end = ranges.dead_letter_begins.get(number, 0), ranges.dead_letter_ends.get(number, 0)
        for offset, record in self._scan.records(topic, number, end, begin):
            origin = origin_of(record.headers)
            if origin is None or (origin.topic, origin.partition) != (self._stream.input, number):
                continue
            each = wanted.get(origin.offset)
            if each is not None and each.dead_letter is None:
                each.dead_letter, each.reason = Place(topic, number, offset), origin.reason

    def _find_transaction(self, arrival: Arrival, log: Log) -> None:
        if arrival.verdict in ("waiting", "skipped"):
            return
        found = log.step(arrival.at.offset)
        if found is None:
            return
        step, is_its_own = found
        if is_its_own:
            arrival.transaction = Transaction(Place(log.topic, log.partition, step.offset), moment(step.at_ms))
        else:
            arrival.transaction = Transaction()
            arrival.notes.append(
                f"the changelog is compacted: it was committed by {moment(step.at_ms)} ({log.topic} partition "
                f"{log.partition} offset {step.offset:,}), and the entry of its own transaction may be gone"
            )

    def _find_writers(self, answer: Answer) -> None:
        asked: dict[Place, list[Transaction]] = {}
        for each in answer.arrivals[:WRITERS_MOST]:
            if each.transaction is None:
                continue
            if (place := each.forwarded or each.kept or each.dead_letter or each.transaction.changelog) is not None:
                asked.setdefault(place, []).append(each.transaction)
        found = who_wrote(self._settings, self._bootstrap, [place.topic for place in asked], asked)
        for place, writer in found.items():
            for transaction in asked[place]:
                transaction.producer_id, transaction.epoch = writer

    # The topic of duplicates, without reading all of it

    def _spans_of_kept(self) -> dict[int, tuple[int, int]]:
        if self._kept_spans is None:
            self._kept_spans = dict(self._reader.spans(self._stream.duplicates or ""))
        return self._kept_spans

    def _kept_at(self, place: Place, log: Log) -> tuple[Place, Origin] | None:
        """Where the topic of duplicates has a record of the input; None: it does not, or it cannot be told.

        Its records stand in the order of the input, unless a person has moved the partition back.
        """
        topic, number = self._stream.duplicates, place.partition
        if topic is None or number not in self._spans_of_kept():
            return None
        compared = range(place.offset, place.offset + 1)
        kept = Kept(log.owner, topic, self._reader.topic_ids[topic], compared, whole=True, complete=True)
        if not kept.is_kept(place.offset) or not kept.is_told(place.offset):
            return None
        low, high = self._spans_of_kept()[number]
        while low < high:
            middle = (low + high) // 2
            found = next(iter(self._reader.records(topic, number, high, middle)), None)
            if found is None:
                high = middle
                continue
            offset, record = found
            origin = origin_of(record.headers)
            if origin is None or (origin.topic, origin.partition) != (place.topic, number):
                return None  # somebody else writes to it, so nothing can be said of its order
            if origin.offset == place.offset:
                return Place(topic, number, offset), origin
            if origin.offset < place.offset:
                low = offset + 1
            else:
                high = middle
        return None

    def _log(self, number: int, identity: bytes) -> Log:
        if number not in self._logs:
            self._logs[number] = read_log(self._settings, self._bootstrap, self._reader, self._name, number, identity)
        return self._logs[number]

    def _require(self, topic: str, number: int) -> None:
        count = self._reader.count(topic)
        if not 0 <= number < count:
            raise SettingsError(f"{topic} has {count} partitions, 0 to {count - 1}: there is no partition {number}")

    def _asked(self, identity: bytes, sequence: int | None) -> str:
        who: Any = f"{self._stream.identity} {shown(identity)!r}" if identity else "the partition"
        return who if sequence is None else f"{who}, sequence {sequence}"
