"""GET /proof: last result of `ratchet verify --record` for each stream, and the number of records since.

Separate module: each page of the navigation has its own.
"""

from __future__ import annotations

from aiohttp import web

from kafka_ratchet.app.inspect.proof import ProofPage, stream_proof
from kafka_ratchet.app.repartition import judging
from kafka_ratchet.app.verify.proofs import read_proofs
from kafka_ratchet.app.web.paging import PAGE_ROWS
from kafka_ratchet.app.web.readings import BOOTSTRAP, answer, impatient, read
from kafka_ratchet.app.web.render import CLUSTER_VIEW


async def proof_page(request: web.Request) -> web.StreamResponse:
    """Return the page with the last proof of each stream."""
    view, bootstrap = request.app[CLUSTER_VIEW], request.app[BOOTSTRAP]

    async def ask(asked: dict[str, str]) -> ProofPage:
        settings = view.settings
        proofs = await read(request, lambda: read_proofs(impatient(settings), bootstrap))
        streams = {each.stream: each for each in (await view.overview()).streams}
        found = []
        for name in judging(settings.streams):
            ends = {row.partition: row.input_end for row in streams[name].partitions}
            found.append(stream_proof(name, proofs.get(name), ends))
        return ProofPage(found)

    return await answer(request, "proof.html", ask, rows_most=PAGE_ROWS)
