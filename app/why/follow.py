"""Search for each input record's results: output record, duplicate, dead letter, transaction and rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.verify.dropped import WrittenDrops, first_kept
from kafka_ratchet.app.verify.reading import OffsetRanges, TopicReader
from kafka_ratchet.app.verify.rule import Rule
from kafka_ratchet.app.why.answer import Answer, InputRecord, RecordPosition, Transaction, moment
from kafka_ratchet.app.why.changelog import Log, who_wrote
from kafka_ratchet.app.why.origin import OriginHeaders, origin_of
from kafka_ratchet.app.why.result import find_rows, id_number
from kafka_ratchet.app.why.scan import Scan
from kafka_ratchet.app.why.sent import SentSearch
from kafka_ratchet.rule.verdicts import DEAD_LETTERED, DROPPED, FRESH, SKIPPED, UNJUDGED, WAITING
from kafka_ratchet.transport.owner import AGENTS, INPUT, OUTPUT, Decision, Mark

WRITERS_MOST = 20
"""Maximum number of searches for the producer of a transaction. Each search takes a request."""


def is_of_agents(log: Log) -> bool:
    """Return True if a program's agents write the output of the changelog's partition."""
    return log.owner is not None and log.owner.rule.get("output") == AGENTS


def newest_replacing(log: Log, *replaced: str) -> tuple[Decision, Mark] | None:
    """Return the newest decision that replaced one of these topics, and the decision's mark; None without one."""
    for each in reversed(log.owner.decisions if log.owner is not None else ()):
        if each.mark is not None and not set(replaced).isdisjoint(each.mark.replaced):
            return each, each.mark
    return None


def first_result(log: Log) -> int:
    """Return the first output offset with results of the present input and output topics."""
    made = newest_replacing(log, INPUT, OUTPUT)
    return made[1].output if made is not None else 0


def _surplus(sequence: int | None, places: Sequence[RecordPosition], most: int) -> list[str]:
    """Return a sentence if a sequence has more output records than the rule forwards."""
    if len(places) <= most:
        return []
    extra = ", ".join(f"{place.offset:,}" for place in places[most:][:5])
    return [
        f"{places[0].topic} partition {places[0].partition} has {len(places)} records of sequence {sequence} (also "
        f"offsets {extra}), and by the rule {most} had to be forwarded: the identity was forgotten in between, or "
        "`ratchet verify` names the error"
    ]


class ResultSearch:
    """Search for the results of the arrivals (input records) in an answer."""

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
        self._sent = SentSearch(settings, name, reader, rule, scan)

    def follow(self, answer: Answer, logs: Mapping[int, Log], through: RecordPosition | None = None) -> None:
        """Find the results of each arrival, and add them to the answer.

        Args:
            answer: answer with arrivals; this method adds the results to them.
            logs: contents of the changelog, by input partition.
            through: output record to read, even if it comes after all expected ones; None: no such record.

        Raises:
            BrokerUnavailable: Kafka does not answer.
            TransportError: a partition cannot be read.
        """
        judged = [each for each in answer.arrivals if each.at.topic == self._stream.input]
        agents: list[InputRecord] = []
        for number in sorted({each.at.partition for each in judged}):
            mine = [each for each in judged if each.at.partition == number]
            is_there = through is not None and (through.topic, through.partition) == (self._stream.output, number)
            least = through.offset if through is not None and is_there else 0
            agents += self._follow_partition(answer, number, mine, logs[number], least)
        if agents:
            output = self._ranges.output_begins
            begins = {number: max(output.get(number, 0), first_result(log)) for number, log in logs.items()}
            self._sent.find(answer, agents, (begins, self._ranges.output_ends))
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

    def _follow_partition(
        self, answer: Answer, number: int, mine: list[InputRecord], log: Log, least: int
    ) -> list[InputRecord]:
        """Add the results to one partition's input records; return the records that agents have processed."""
        passed = [each for each in mine if each.verdict in (FRESH, UNJUDGED)]
        agents = passed if is_of_agents(log) else []
        if not agents and answer.identity is not None and self._stream.forward:
            self._find_forwarded(answer, number, passed, log, least)
        self._find_kept(number, [each for each in mine if each.verdict in DROPPED and each.kept is None], log)
        missing = [each for each in mine if each.verdict in DEAD_LETTERED and each.kept is None]
        self._find_letters(number, missing + agents, log)  # an agent may have raised
        for each in mine:
            self._find_transaction(each, log)
        return agents

    def _find_forwarded(self, answer: Answer, number: int, arrivals: list[InputRecord], log: Log, least: int) -> None:
        """Find the output records of input records, by identity, sequence and order.

        least: least output offset that the reading must reach.
        """
        if not arrivals:
            return
        wanted: dict[int | None, list[InputRecord]] = {}
        for each in arrivals:
            wanted.setdefault(each.sequence, []).append(each)
        topic, ranges = self._stream.output, self._ranges
        first = first_result(log)
        begin, end = max(first, ranges.output_begins[number]), ranges.output_ends[number]
        is_cut = begin > first
        found: dict[int | None, list[RecordPosition]] = {}
        left = len(arrivals) if not self._stream.is_bounded and not is_cut else -1
        for offset, record in self._scan.records(topic, number, end, begin):
            judged = self._rule.identify(record)
            if judged is None or judged[0] != answer.identity or judged[1] not in wanted:
                continue
            places = found.setdefault(judged[1], [])
            places.append(RecordPosition(topic, number, offset))
            left -= len(places) <= len(wanted[judged[1]])
            if not left and offset >= least:
                break
        for sequence, group in wanted.items():
            places = found.get(sequence, [])
            if is_cut and len(places) < len(group):
                group = group[len(group) - len(places) :]  # the oldest ones are deleted
            for each, place in zip(group, places, strict=False):
                each.forwarded = place
            answer.limits += _surplus(sequence, places, len(group))
        for each in arrivals:
            if each.forwarded is None and not self._scan.stopped:
                each.notes.append(f"it is not in {topic}{self._why_absent(number, log)}")

    def _why_absent(self, number: int, log: Log) -> str:
        decisions = log.owner.decisions if log.owner is not None else ()
        for each in reversed(decisions):
            if each.mark is not None and OUTPUT in each.mark.replaced:
                return f", which was created again: accepted by {each.by} at {each.at}: {each.reason}"
        if self._ranges.output_begins[number]:
            return f", which begins at offset {self._ranges.output_begins[number]:,}: earlier records are deleted"
        if self._ranges.input_begins[number]:
            return ": either it repeats a deleted record, or something is wrong: run `ratchet verify`"
        return ", although by the rule it should be: run `ratchet verify`"

    def _find_kept(self, number: int, arrivals: list[InputRecord], log: Log) -> None:
        """Find the copies of dropped input records in the topic of duplicates."""
        topic = self._stream.duplicates
        if topic is None or not arrivals:
            return
        wanted = {each.at.offset: each for each in arrivals}
        begin, end = self._reader.span(topic, number) or (0, 0)
        begin = self._first_kept(topic, begin, log) if begin < end else begin
        for offset, record in self._scan.records(topic, number, end, begin):
            origin = origin_of(record.headers)
            if origin is None or (origin.topic, origin.partition) != (self._stream.input, number):
                continue
            each = wanted.get(origin.offset)
            if each is not None and each.kept is None:
                each.kept = RecordPosition(topic, number, offset)
                each.against = origin.last_sequence if each.against is None else each.against

    def _first_kept(self, topic: str, begin: int, log: Log) -> int:
        """Return the first offset from `begin` on with duplicates of the present input topic."""
        made = newest_replacing(log, INPUT)
        return (
            begin if made is None else max(begin, first_kept(log.owner, made[1], topic, self._reader.topic_id(topic)))
        )

    def _find_letters(self, number: int, arrivals: list[InputRecord], log: Log) -> None:
        if not arrivals:
            return
        topic, ranges = self._stream.dead_letters, self._ranges
        wanted = {each.at.offset: each for each in arrivals}
        begin, end = ranges.dead_letter_begins.get(number, 0), ranges.dead_letter_ends.get(number, 0)
        if (made := newest_replacing(log, INPUT)) is not None:
            begin = max(begin, made[1].dead_letters)
        for offset, record in self._scan.records(topic, number, end, begin):
            origin = origin_of(record.headers)
            if origin is None or (origin.topic, origin.partition) != (self._stream.input, number):
                continue
            each = wanted.get(origin.offset)
            if each is not None and each.dead_letter is None:
                each.dead_letter, each.reason = RecordPosition(topic, number, offset), origin.reason

    def _find_transaction(self, arrival: InputRecord, log: Log) -> None:
        if arrival.verdict in (WAITING, SKIPPED):
            return
        found = log.step(arrival.at.offset)
        if found is None:
            return
        step, is_its_own = found
        if is_its_own:
            arrival.transaction = Transaction(RecordPosition(log.topic, log.partition, step.offset), moment(step.at_ms))
        else:
            arrival.transaction = Transaction()
            arrival.notes.append(
                f"the changelog is compacted: the record was committed by {moment(step.at_ms)} ({log.topic} partition "
                f"{log.partition} offset {step.offset:,}), and the entry of its own transaction may be gone"
            )

    def _find_writers(self, answer: Answer) -> None:
        asked: dict[RecordPosition, list[Transaction]] = {}
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

    def kept_at(self, place: RecordPosition, log: Log) -> tuple[RecordPosition, OriginHeaders] | None:
        """Return place and origin of an input record's copy in the topic of duplicates; None: not found.

        The search is a bisection, because the topic has the order of the input. After an operator has moved the
        position back, this order is broken, and the copy may not be found.
        """
        topic, number = self._stream.duplicates, place.partition
        span = None if topic is None else self._reader.span(topic, number)
        if topic is None or span is None:
            return None
        compared = range(place.offset, place.offset + 1)
        kept = WrittenDrops(log.owner, topic, self._reader.topic_id(topic), compared, whole=True, complete=True)
        if not kept.is_kept(place.offset) or not kept.is_certain(place.offset):
            return None
        low, high = self._first_kept(topic, span[0], log), span[1]
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
                return RecordPosition(topic, number, offset), origin
            if origin.offset < place.offset:
                low = offset + 1
            else:
                high = middle
        return None
