"""One address for several processes: figures put together, and probes that ask all."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import aiohttp
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from kafka_ratchet.app.status.http import listen
from kafka_ratchet.app.status.together import CombinedServer, merged

TEXT = """# HELP a_total What it is.
# TYPE a_total counter
a_total{stream="x",partition="0"} 1.0
a_total{stream="}\\n{",partition="1"} 2.0
# HELP b Other.
# TYPE b gauge
b 3.0
"""


def test_figures_of_several_are_one_text_with_a_label() -> None:
    both = merged({"0": TEXT, "1": TEXT.replace(" 3.0", " 4.0")})
    families = {family.name: family for family in text_string_to_metric_families(both)}
    assert [family.documentation for family in families.values()] == ["What it is.", "Other."]
    assert [(each.labels["process"], each.value) for each in families["b"].samples] == [("0", 3.0), ("1", 4.0)]
    labels = [each.labels for each in families["a"].samples]
    assert labels[1] == {"process": "0", "stream": "}\n{", "partition": "1"}
    assert len(labels) == 4
    assert both.count("# TYPE") == 2


async def test_probes_are_answered_by_all_or_not_at_all() -> None:
    ready = [200, 503]

    async def serve(number: int) -> web.AppRunner:
        async def answer(_: web.Request) -> web.Response:
            return web.Response(status=ready[number])

        async def metrics(_: web.Request) -> web.Response:
            return web.Response(text=TEXT)

        application = web.Application()
        application.router.add_get("/readyz", answer)
        application.router.add_get("/metrics", metrics)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner

    runners = [await serve(0), await serve(1)]
    addresses = [f"http://127.0.0.1:{runner.addresses[0][1]}" for runner in runners]
    listening = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    serving = asyncio.create_task(CombinedServer(addresses, [0, 7]).serve("127.0.0.1", listening))
    async with aiohttp.ClientSession() as client:

        async def get(path: str, host: str = "any.example") -> tuple[int, str]:
            async with client.get(url + path, headers={"Host": host}) as answer:
                return answer.status, await answer.text()

        assert await get("/readyz") == (503, '{"processes":{"0":true,"1":false}}')
        ready[1] = 200
        assert (await get("/readyz"))[0] == 200
        assert (await get("/processes/"))[0] == 421
        assert json.loads((await get("/processes/", "127.0.0.1"))[1]) == {"0": addresses[0], "1": addresses[1]}
        await runners[1].cleanup()
        assert (await get("/readyz"))[0] == 503
        text = (await get("/metrics"))[1]
        assert 'ratchet_process_up{process="1"} 0\n' in text
        assert 'ratchet_process_replaced_total{process="1"} 7\n' in text
        assert 'b{process="0"} 3.0\n' in text
        assert 'b{process="1"}' not in text
    os.kill(os.getpid(), signal.SIGTERM)
    await serving
    await runners[0].cleanup()
