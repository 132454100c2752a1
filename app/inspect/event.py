"""Trace of a record: sentences for `ratchet why` and the page."""

from __future__ import annotations

from dataclasses import dataclass

from kafka_ratchet.app.inspect.document import Document
from kafka_ratchet.app.why.answer import Answer, InputRecord, Result, SentRecord
from kafka_ratchet.rule.verdicts import BY_SEQUENCE, FRESH, PHRASES, WAITING

NOT_FOUND = "not found: the input has no such record"
NOT_FOUND_SO_FAR = "not found in the records read so far"


@dataclass(frozen=True, slots=True)
class EventTrace(Document):
    """Trace of a record as the page shows it. command: `ratchet why` command line that prints the whole trace."""

    json_keys = (
        *(f"{each.partition('=')[0]}=answer.{each.rpartition('=')[2]}" for each in Answer.json_keys),
        "asked=answer.asked",
        "identity_hex=answer.identity_hex",
        "command",
    )

    answer: Answer
    command: str


def absence(answer: Answer) -> str:
    """Return the sentence that the record was not found in the input."""
    return NOT_FOUND if answer.read_all else NOT_FOUND_SO_FAR


def judgement(arrival: InputRecord) -> str:
    """Return the phrase about an arrival's verdict, and the last sequence at that time."""
    if arrival.blocked is not None:
        return f"waits for an open transaction, {PHRASES[WAITING]}: {arrival.blocked}"
    if arrival.verdict == WAITING:
        return f"{PHRASES[WAITING]}: {arrival.lag or 0:,} offsets before it wait for a worker as well"
    return f"{PHRASES[arrival.verdict]}{_against(arrival)}"


def _against(arrival: InputRecord) -> str:
    if arrival.verdict not in BY_SEQUENCE:
        return ""
    if arrival.against is None:
        return "; the first of its identity" if arrival.verdict == FRESH else ""
    return f"; the last sequence of its identity was {arrival.against}"


def reading_state(sent: SentRecord) -> str:
    """Return a phrase about a record that an agent sent: whether the stream of its topic has read it; "": unknown."""
    return "" if sent.read is None else "read there" if sent.read else "where it waits for a worker"


def producer_of(arrival: InputRecord) -> str:
    """Return the phrase about the transactional producer that committed the verdict; "" if it is not known."""
    transaction = arrival.transaction
    if transaction is None or transaction.producer_id is None:
        return ""
    return f"producer id {transaction.producer_id}, epoch {transaction.epoch}"


def more_arrivals(answer: Answer, shown: int) -> int:
    """Return the number of omitted arrivals. shown: number of arrivals that the page or terminal shows at most."""
    return max(0, len(answer.arrivals) - shown) + answer.more


def row_phrase(arrival: InputRecord, result: Result) -> str:
    """Return the phrase about the record's row in a result table, with the commit that wrote it."""
    offset = arrival.forwarded.offset if arrival.forwarded is not None else result.read_to
    commit = f", {result.commit}" if result.commit and result.read_to > offset else ""
    return f"{result.sentence(offset)}{commit}"
