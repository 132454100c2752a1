"""Search for the results of arrivals: output record, duplicate, dead letter, transaction and rows of each."""

from __future__ import annotations

from collections.abc import Mapping

from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.verify.dropped import Kept
from kafka_ratchet.app.verify.reading import OffsetRanges, TopicReader
from kafka_ratchet.app.verify.rule import Rule
from kafka_ratchet.app.why.answer import Answer, Arrival, Place, Transaction, moment
from kafka_ratchet.app.why.changelog import Log, who_wrote
from kafka_ratchet.app.why.origin import Origin, origin_of
from kafka_ratchet.app.why.result import find_rows, id_number
from kafka_ratchet.app.why.scan import Scan
from kafka_ratchet.app.why.sent import SentOn
from kafka_ratchet.rule.verdicts import DEAD_LETTERED, DROPPED, FRESH, SKIPPED, UNJUDGED, WAITING
from kafka_ratchet.transport.owner import AGENTS, OUTPUT

WRITERS_MOST = 20
"""Most searches for the producer of an arrival's transaction, since each takes a request."""
"""Verdicts that may make dead letters. The last two did so only if the stream's settings asked for it."""


def is_of_agents(log: Log) -> bool:
    """Return True if a program's agents write the output of the partition with this changelog."""
    return log.owner is not None and log.owner.rule.get("output") == AGENTS


class Following:
    """Searcher of the results of the arrivals in an answer."""

    def __init__(
        self,
        settings: Settings,
        name: str,
        bootstrap: str,
        reader: TopicReader,
        ranges: OffsetRanges,
        rule: Rule,
        scan: Scan,
    ) -> None:
        """Store the arguments; read nothing yet."""
        self._settings, self._name, self._bootstrap = settings, name, bootstrap
        self._stream = settings.streams[name]
        self._reader, self._ranges, self._rule, self._scan = reader, ranges, rule, scan
        self._sent = SentOn(settings, name, reader, rule, scan)

    def follow(self, answer: Answer, logs: Mapping[int, Log]) -> None:
        """Find the results of each arrival, and add them to the answer.

        Args:
            answer: answer with arrivals; this method adds the results to them
            logs: contents of the changelog, by input partition

        Raises:
            BrokerUnavailable: Kafka does not answer.
            TransportError: a partition cannot be read.
        """
        judged = [each for each in answer.arrivals if each.at.topic == self._stream.input]
        agents: list[Arrival] = []
        for number in sorted({each.at.partition for each in judged}):
            mine = [each for each in judged if each.at.partition == number]
            agents += self._follow_partition(answer, number, mine, logs[number])
        if agents:
            output = self._ranges.output_begins, self._ranges.output_ends
            self._sent.find(answer, agents, output)
        self._find_writers(answer)
        forwarded = [each.forwarded for each in answer.arrivals if each.forwarded is not None]
        topic_id = id_number(self._reader.topic_id(self._stream.output)) if forwarded else None
        results, limits = find_rows(self._settings, self._name, self._bootstrap, forwarded, self._scan, topic_id)
        for each in answer.arrivals:
            each.results = results.get(each.forwarded, []) if each.forwarded is not None else []
            each.result = next(iter(each.results), None)
        answer.limits += limits
        if self._scan.stopped:
            answer.read_all = False
            answer.limits += self._scan.stopped

    def _follow_partition(self, answer: Answer, number: int, mine: list[Arrival], log: Log) -> list[Arrival]:
        """Add the results to the arrivals of one partition, and return those arrivals that agents have processed."""
        passed = [each for each in mine if each.verdict in (FRESH, UNJUDGED)]
        agents = passed if is_of_agents(log) else []
        if not agents and answer.identity is not None and self._stream.forward:
            self._find_forwarded(answer, number, passed, log)
        self._find_kept(number, [each for each in mine if each.verdict in DROPPED and each.kept is None])
        missing = [each for each in mine if each.verdict in DEAD_LETTERED and each.kept is None]
        self._find_letters(number, missing + agents)  # an agent may have raised
        for each in mine:
            self._find_transaction(each, log)
        return agents

    def _find_forwarded(self, answer: Answer, number: int, arrivals: list[Arrival], log: Log) -> None:
        """Find the output records of arrivals: those with the same identity and sequence, in the same order."""
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
                    "between, or `ratchet verify` names the error"
                )
        for each in arrivals:
            if each.forwarded is None and not self._scan.stopped:
                each.notes.append(f"it is not in {topic}{self._why_absent(number, log)}")

    def _why_absent(self, number: int, log: Log) -> str:
        decisions = log.owner.decisions if log.owner is not None else ()
        for each in reversed(decisions):
            if each.mark is not None and OUTPUT in each.mark.replaced:
                return f", which was created again: accepted by {each.by} at {each.at}: {each.reason}"
        if self._ranges.output_begins[number]:
            return f", which begins at offset {self._ranges.output_begins[number]:,}: what came before is deleted"
        if self._ranges.input_begins[number]:
            return ": either it repeats a deleted record, or something is wrong: run `ratchet verify`"
        return ", although by the rule it should be: run `ratchet verify`"

    def _find_kept(self, number: int, arrivals: list[Arrival]) -> None:
        """Find the copies of dropped arrivals in the topic of duplicates."""
        topic = self._stream.duplicates
        if topic is None or not arrivals:
            return
        wanted = {each.at.offset: each for each in arrivals}
        begin, end = self._reader.span(topic, number) or (0, 0)
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
        if arrival.verdict in (WAITING, SKIPPED):
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

    def kept_at(self, place: Place, log: Log) -> tuple[Place, Origin] | None:
        """Return place and origin of an input record's copy in the topic of duplicates; None: absent, or not known.

        It searches by bisection, because the topic has the order of the input, unless an operator has moved the
        partition back.
        """
        topic, number = self._stream.duplicates, place.partition
        span = None if topic is None else self._reader.span(topic, number)
        if topic is None or span is None:
            return None
        compared = range(place.offset, place.offset + 1)
        kept = Kept(log.owner, topic, self._reader.topic_id(topic), compared, whole=True, complete=True)
        if not kept.is_kept(place.offset) or not kept.is_certain(place.offset):
            return None
        low, high = span
        while low < high:
            middle = (low + high) // 2
            found = next(iter(self._reader.records(topic, number, high, middle)), None)
            if found is None:
                high = middle
                continue
            offset, record = found
            origin = origin_of(record.headers)
            if origin is None or (origin.topic, origin.partition) != (place.topic, number):
                return None  # another program writes to it, so its order is unknown
            if origin.offset == place.offset:
                return Place(topic, number, offset), origin
            if origin.offset < place.offset:
                low = offset + 1
            else:
                high = middle
        return None
