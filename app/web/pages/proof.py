"""GET /proof: last result of `ratchet verify --record` for each stream, and the number of records since."""

from __future__ import annotations

import shlex
from typing import Any

from aiohttp import web

from kafka_ratchet.app.repartition import judging
from kafka_ratchet.app.status.model import StreamView
from kafka_ratchet.app.verify.proofs import Proof, read_proofs
from kafka_ratchet.app.web.paging import PAGE_ROWS
from kafka_ratchet.app.web.readings import BOOTSTRAP, answer, impatient, read
from kafka_ratchet.app.web.render import CLUSTER_VIEW


async def proof_page(request: web.Request) -> web.StreamResponse:
    """Return the page with the last proof of each stream."""
    view, bootstrap = request.app[CLUSTER_VIEW], request.app[BOOTSTRAP]

    async def ask(asked: dict[str, str]) -> dict[str, Any]:
        settings = view.settings
        proofs = await read(request, lambda: read_proofs(impatient(settings), bootstrap))
        streams = {each.stream: each for each in (await view.overview()).streams}
        return {"streams": [of_stream(name, proofs.get(name), streams[name]) for name in judging(settings.streams)]}

    return await answer(request, "proof.html", ask, rows_most=PAGE_ROWS)


def of_stream(name: str, proof: Proof | None, stream: StreamView) -> dict[str, Any]:
    """Return a stream's proof as a JSON object.

    Its key `since` has the number of input offsets after the proof; None: not known.
    """
    rows, problems = [], []
    ends = {row.partition: row.input_end for row in stream.partitions}
    if proof is not None:
        for number in sorted({*proof.compared_to, *ends}):
            to, end = proof.compared_to.get(number, (0, 0)), ends.get(number)
            rows.append(
                {
                    "partition": number,
                    "input": to[0],
                    "output": to[1],
                    "input_end": end,
                    "since": None if end is None else max(0, end - to[0]),
                }
            )
            if end is not None and end < to[0]:
                problems.append(
                    f"input partition {number} ends at offset {end:,}, before the proven offsets: the topic was "
                    "deleted and created again, or has lost its end. The proof is about the former records. Run the "
                    "command again"
                )
    since = [row["since"] for row in rows]
    return {
        "stream": name,
        "proof": proof,
        "partitions": rows,
        "since": None if not rows or None in since else sum(since),
        "problems": problems,
        "command": shlex.join(["ratchet", "verify", "--stream", name, "--record"]),
    }
