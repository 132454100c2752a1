"""One status address for all processes of a worker, for probes and Prometheus.

    GET /healthz, /readyz     200 if every process answers with 200, else 503.
    GET /metrics              Metrics of all answering processes, each with the label `process`.
    GET /processes/           The processes and their own addresses.

For /healthz, /readyz and /metrics, the server sends the request on to each process.
"""

from __future__ import annotations

import asyncio
import re
import signal
import socket
from collections.abc import Mapping, Sequence
from typing import Final

import aiohttp
import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from kafka_ratchet.app.status.http import bind, json_refusal, reachable_host, request_checks

HEALTH_WITHIN_S: Final = 0.8
"""Maximum seconds until a probe is answered; Kubernetes waits one second."""
METRICS_WITHIN_S: Final = 5.0
"""Maximum seconds until a scrape is answered; Prometheus waits ten seconds."""

_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


class CombinedServer:
    """Server that answers for all processes of a worker, for probes and Prometheus.

    Args:
        addresses: `http://host:port` of each process, for requests from this machine
        replaced: for each process, how often it was replaced by a new one
    """

    def __init__(self, addresses: Sequence[str], replaced: Sequence[int]) -> None:
        self._addresses, self._replaced = addresses, replaced
        self._client: aiohttp.ClientSession | None = None

    async def serve(self, host: str, listening: socket.socket) -> None:
        """Serve on a socket bound to the host, until SIGTERM or SIGINT."""
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        guarded = web.Application(middlewares=[request_checks({reachable_host(host), host}, json_refusal)])
        guarded.router.add_get("/", self._list)
        application = web.Application()
        for path in ("/healthz", "/readyz"):
            application.router.add_get(path, self._health)
        application.router.add_get("/metrics", self._metrics)
        application.add_subapp("/processes", guarded)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        async with aiohttp.ClientSession() as self._client:
            await bind(runner, host, 0, reachable_host(host), listening=listening)
            await stop.wait()
            await runner.cleanup()

    async def _list(self, request: web.Request) -> web.Response:
        return _json({str(number): address for number, address in enumerate(self._addresses)})

    async def _health(self, request: web.Request) -> web.Response:
        answers = await asyncio.gather(*(self._ask(each, request.path, HEALTH_WITHIN_S) for each in self._addresses))
        told = {str(number): status == 200 for number, (status, _) in enumerate(answers)}
        return _json({"processes": told}, 200 if all(told.values()) else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        answers = await asyncio.gather(*(self._ask(each, "/metrics", METRICS_WITHIN_S) for each in self._addresses))
        told = {str(number): body for number, (status, body) in enumerate(answers) if status == 200}
        up = {str(number): int(str(number) in told) for number in range(len(answers))}
        text = merged(told) + _family("ratchet_process_up", "gauge", "1 where the process answers, else 0.", up)
        replaced = {str(number): count for number, count in enumerate(self._replaced)}
        text += _family("ratchet_process_replaced_total", "counter", "Times the process was started again.", replaced)
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _ask(self, address: str, path: str, within_s: float) -> tuple[int, str]:
        """Send a request to one process; return the answer's status code and body, code 0 without an answer."""
        assert self._client is not None  # noqa: S101 - it is served
        try:
            limit = aiohttp.ClientTimeout(total=within_s)
            async with self._client.get(address + path, timeout=limit, allow_redirects=False) as answer:
                return answer.status, await answer.text()
        except (aiohttp.ClientError, TimeoutError, OSError):
            return 0, ""


def merged(texts: Mapping[str, str]) -> str:
    """Return the Prometheus text of several processes together. texts: text by process.

    Each sample gets the label `process`.
    """
    families: dict[str, list[str]] = {}
    for process, text in texts.items():
        family, is_new = list[str](), False
        for line in text.split("\n"):  # not at the other ends of lines, which a label's value may have
            if line.startswith("# HELP "):
                family = families.setdefault(line.split(" ", 3)[2], [])
                is_new = not family
            if line.startswith("#"):
                if is_new:
                    family.append(line)
            elif (name := _NAME.match(line)) is not None:
                rest = line[name.end() :]
                labels = f'{{process="{process}"' + (f",{rest[1:]}" if rest.startswith("{") else "}" + rest)
                family.append(name[0] + labels)
    return "".join(f"{line}\n" for family in families.values() for line in family)


def _family(name: str, kind: str, text: str, values: Mapping[str, int]) -> str:
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    return "".join(
        f"{line}\n" for line in [*lines, *(f'{name}{{process="{each}"}} {value}' for each, value in values.items())]
    )


def _json(body: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json", charset="utf-8")
