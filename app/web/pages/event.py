"""GET /event: trace of a record, from its arrival in the input to the row.

?[stream=S&] producer=N&sequence=S, or identity=TEXT or hex=HEX [&sequence=S][&partition=P],
or topic=T&partition=P&offset=O
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from aiohttp import web

from kafka_ratchet.app.inspect.event import EventTrace
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.cluster_view import ClusterView
from kafka_ratchet.app.web.readings import BOOTSTRAP, answer, impatient, read
from kafka_ratchet.app.web.render import CLUSTER_VIEW
from kafka_ratchet.app.why.explain import Explanation
from kafka_ratchet.app.why.question import Question, question_of

LIMIT_S: Final = 8.0
LIMIT_BYTES: Final = 512 << 20
"""Maximum number of bytes of keys and values to read for one trace. `LIMIT_S` is enough for some 500,000 records."""
SHOWN: Final = 20
"""Maximum number of arrivals on the page. The JSON form has up to a thousand."""


async def event_page(request: web.Request) -> web.StreamResponse:
    """Return the page with the trace of a record or of an identity's records, within a time limit."""
    view = request.app[CLUSTER_VIEW]
    settings = view.settings

    async def ask(asked: dict[str, str]) -> EventTrace | None:
        question = question_of(settings, asked)
        if question is None:
            return None
        where = await _where(view, question)
        bootstrap = request.app[BOOTSTRAP]
        return await read(request, lambda: trace(settings, bootstrap, question, where), instead=question.command)

    return await answer(request, "event.html", ask, most=SHOWN)


class SearchedPartitions(NamedTuple):
    """Partitions to search for an identity's records.

    partitions: input partitions, in the order of the search; None: all.
    judged_to: by partition, the first offset to search. The partition's worker has judged all records before that
    offset, and does not know the identity, so none of these records has the identity.
    """

    partitions: list[int] | None = None
    judged_to: Mapping[int, int] = MappingProxyType({})


async def _where(view: ClusterView, question: Question) -> SearchedPartitions:
    """Return the partitions to search: first those where a worker knows the identity, then all others.

    In a partition where the worker does not know the identity, only records not judged yet can have the identity. If
    workers forget identities, or have forwarded records unjudged, whole partitions are searched.
    """
    if question.partition is not None:
        return SearchedPartitions([question.partition])
    if question.identity is None:
        return SearchedPartitions()
    overview = await view.overview()  # before the look-up: later verdicts may be known to it, or not
    found = await view.lookup(question.stream, question.identity, None)
    first = [row.partition for row in found.partitions]
    every = first + [number for number in [*found.asked, *found.not_asked] if number not in first]
    if view.settings.streams[question.stream].is_bounded or found.unjudged or found.deduplicate is False:
        return SearchedPartitions(every or None)
    stream = next(each for each in overview.streams if each.stream == question.stream)
    unknown = set(found.asked) - set(first)
    judged_to = {
        row.partition: row.input_position
        for row in stream.partitions
        if row.partition in unknown and row.input_position is not None
    }
    return SearchedPartitions(every or None, judged_to)


EVERYWHERE: Final = SearchedPartitions()


def trace(
    settings: Settings,
    bootstrap: str,
    question: Question,
    where: SearchedPartitions = EVERYWHERE,
    limit_s: float = LIMIT_S,
    limit_bytes: int = LIMIT_BYTES,
) -> EventTrace:
    """Return the trace, read from the topics and the result tables.

    Args:
        settings: settings of the application.
        bootstrap: host:port[,host:port].
        question: question about the record.
        where: partitions to search.
        limit_s: maximum seconds of reading.
        limit_bytes: maximum number of bytes of keys and values to read.

    Raises:
        RatchetError: the trace cannot be read; see `Explanation`.
    """
    explanation = Explanation(
        impatient(settings),
        question.stream,
        bootstrap,
        limit_s=limit_s,
        watch=lambda done, total: None,
        limit_bytes=limit_bytes,
    )
    try:
        if question.topic is not None and question.partition is not None and question.offset is not None:
            found = explanation.of_record(question.topic, question.partition, question.offset)
        else:
            found = explanation.of_identity(question.identity or b"", question.sequence, *where)
    finally:
        explanation.close()
    return EventTrace(found, question.command)
