"""Search for the records that agents have sent for an event, by id or identity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kafka_ratchet.agents.event import EVENT_ID, id_in, own_id
from kafka_ratchet.app.names import repartition_topic
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.verify.reading import TopicReader, plain_id
from kafka_ratchet.app.verify.rule import Rule
from kafka_ratchet.app.why.answer import Answer, InputRecord, RecordPosition, SentRecord
from kafka_ratchet.app.why.scan import Scan
from kafka_ratchet.errors import ForeignOffset
from kafka_ratchet.tables.replays import REPLAYED_FROM

LOOK_UP_MOST: Final = 20
"""Maximum number of arrivals to read again, to find the event's id in their headers."""
UNNAMED: Final = (
    "agents of a program make the output of this stream. A record that they send names its event only where it goes "
    "through a step (group_by, or a table of two topics). All other sends, and the agents' writes to tables, were "
    "committed with the transaction of the arrival, or not at all. `ratchet tables TABLE KEY` has the value of a table"
)


class SentSearch:
    """Search for agents' records: in internal topics by event id, in the output by identity."""

    def __init__(self, settings: Settings, name: str, reader: TopicReader, rule: Rule, scan: Scan) -> None:
        """Store the arguments; read nothing yet."""
        self._settings, self._stream = settings, settings.streams[name]
        self._reader, self._rule, self._scan = reader, rule, scan

    def find(
        self, answer: Answer, arrivals: list[InputRecord], output: tuple[Mapping[int, int], Mapping[int, int]]
    ) -> None:
        """Find the records that agents have sent for each arrival, and add them to the arrival.

        Args:
            answer: answer with the arrivals
            arrivals: the arrivals that agents have processed
            output: first offsets and ends of the output, each by partition

        Raises:
            BrokerUnavailable: Kafka does not answer.
            TransportError: a partition cannot be read.
        """
        answer.limits.append(UNNAMED)
        by_id = {
            each: arrival
            for count, arrival in enumerate(arrivals)
            for each in self._ids(arrival, read=count < LOOK_UP_MOST)
        }
        for topic in self._steps() if by_id else ():
            self._find_in(topic, by_id)
        self._find_in_output(answer, arrivals, *output)

    def _steps(self) -> list[str]:
        """Return the topics of the internal streams. Their records have event ids in a header."""
        begin = repartition_topic(self._settings.app, "")
        inner = {each.input for each in self._settings.streams.values() if each.event_header == EVENT_ID}
        return sorted({name for name in self._reader.topics() if name.startswith(begin)} | inner)

    def _ids(self, arrival: InputRecord, *, read: bool) -> list[str]:
        """Return the possible ids of an arrival's event.

        read: True: read the arrival's record again, as its headers may have an id
        """
        place = arrival.at
        found = [own_id(plain_id(self._reader.topic_id(place.topic)), place.partition, place.offset)]
        record = self._scan.one(place.topic, place.partition, place.offset) if read else None
        if record is None:
            return found
        names = [name for name in (self._stream.event_header,) if name]
        if any(name == REPLAYED_FROM for name, _ in record.headers):
            names.append(EVENT_ID)
        return found + [named for name in names if (named := id_in(record.headers, name)) is not None]

    def _find_in(self, topic: str, by_id: Mapping[str, InputRecord]) -> None:
        spans = self._reader.spans(topic)
        try:
            read: Mapping[int, int] = self._reader.committed_of(topic, len(spans))
        except ForeignOffset:
            read = {}
        for number, (begin, end) in spans.items():
            for offset, record in self._scan.records(topic, number, end, begin):
                arrival = by_id.get(id_in(record.headers, EVENT_ID) or "")
                if arrival is not None and arrival.at.topic != topic:
                    is_read = offset < read[number] if number in read else None
                    arrival.sent.append(SentRecord(RecordPosition(topic, number, offset), is_read))

    def _find_in_output(
        self, answer: Answer, arrivals: list[InputRecord], begins: Mapping[int, int], ends: Mapping[int, int]
    ) -> None:
        """Find the agents' records in the output with identity and sequence of the event."""
        if answer.identity is None:
            return
        topic = self._stream.output
        for number in sorted({each.at.partition for each in arrivals}):
            mine = {each.sequence: each for each in arrivals if each.at.partition == number}
            for offset, record in self._scan.records(topic, number, ends.get(number, 0), begins.get(number, 0)):
                judged = self._rule.identify(record)
                if judged is not None and judged[0] == answer.identity and judged[1] in mine:
                    mine[judged[1]].sent.append(SentRecord(RecordPosition(topic, number, offset)))
