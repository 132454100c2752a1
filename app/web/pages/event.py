"""GET /event: what became of a record, from its arrival to the row.

?[stream=S&] producer=N&sequence=S, or identity=TEXT or hex=HEX [&sequence=S][&partition=P],
or topic=T&partition=P&offset=O
"""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web

from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.cluster_view import ClusterView
from kafka_ratchet.app.web.readings import BOOTSTRAP, answer, impatient, read
from kafka_ratchet.app.web.render import CLUSTER_VIEW
from kafka_ratchet.app.why.explain import Explanation
from kafka_ratchet.app.why.question import Question, question_of

LIMIT_S: Final = 8.0
LIMIT_BYTES: Final = 512 << 20
"""Of keys and values. In this time some 500,000 records are read."""
SHOWN: Final = 20
"""Arrivals on the page; the JSON has up to a thousand."""


async def event_page(request: web.Request) -> web.StreamResponse:
    """The trace of one record, or of the records of an identity, as far as it is read within some seconds."""
    view = request.app[CLUSTER_VIEW]
    settings = view.settings

    async def ask(asked: dict[str, str]) -> dict[str, Any] | None:
        question = question_of(settings, asked)
        if question is None:
            return None
        partitions = await _in_order(view, question)
        bootstrap = request.app[BOOTSTRAP]
        return await read(request, lambda: trace(settings, bootstrap, question, partitions), instead=question.command)

    return await answer(request, "event.html", ask, most=SHOWN)


async def _in_order(view: ClusterView, question: Question) -> list[int] | None:
    """The partitions to look into; first those of which a worker says that they know the identity."""
    if question.partition is not None:
        return [question.partition]
    if question.identity is None:
        return None
    found = await view.lookup(question.stream, question.identity, None)
    first = [row.partition for row in found.partitions]
    every = first + [number for number in [*found.asked, *found.not_asked] if number not in first]
    return every or None


def trace(
    settings: Settings,
    bootstrap: str,
    question: Question,
    partitions: list[int] | None,
    limit_s: float = LIMIT_S,
    limit_bytes: int = LIMIT_BYTES,
) -> dict[str, Any]:
    """Read it from the topics and the result table.

    Args:
        settings: of the application
        bootstrap: host:port[,host:port]
        question: which record
        partitions: of the input, in the order in which they are looked into; None: all
        limit_s: seconds that reading may take
        limit_bytes: of keys and values that may be read

    Raises:
        RatchetError: the question cannot be answered; see `Explanation`.
    """
    explanation = Explanation(
        impatient(settings),
        question.stream,
        bootstrap,
        limit_s=limit_s,
        watch=lambda done, total: None,
        limit_bytes=limit_bytes,
    )
    if question.topic is not None and question.partition is not None and question.offset is not None:
        found = explanation.of_record(question.topic, question.partition, question.offset)
    else:
        found = explanation.of_identity(question.identity or b"", question.sequence, partitions)
    identity_hex = None if found.identity is None else found.identity.hex()
    more = {"asked": found.asked, "identity_hex": identity_hex, "command": question.command}
    return found.as_dict() | more
