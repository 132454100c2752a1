import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.parser import text_string_to_metric_families

from kafka_ratchet.app.status.answers import IdentityStatus, Readiness, WorkerMeasures
from kafka_ratchet.app.status.server import StatusServer
from kafka_ratchet.errors import SetupError
from kafka_ratchet.tables.invalid_share import InvalidShare
from kafka_ratchet.transport.measures import StreamMeasures
from tests.app.worker.known_worker import KnownWorker, partition, table

HOSTILE = ["<script>alert(1)</script>", "a\0b", "../../etc/passwd", "a&sequence=9", "%41", "Zürich ☂", "' OR 1=1 --"]

POLICY = {
    "deduplicate": True,
    "origin": "default",
    "unjudged": 0,
    "can_forget": True,
    "can_replay": True,
    "names_apps": True,
}


@pytest.fixture
def worker() -> KnownWorker:
    known = KnownWorker(
        [
            table(
                partition(0),
                partition(
                    3,
                    state="halted",
                    error="offset 7: corrupt",
                    invalid=2,
                    evicted_inactive=30,
                    evicted_displaced=4,
                    recognised_for_s=604_800,
                    jumps=7,
                    recent=InvalidShare(100, 20, 10_000, 100),
                    restarts=5,
                    halted="CorruptBatch",
                    lag_s=12.5,
                    store_bytes=4096,
                ),
            )
        ]
    )
    known.sequences["events", b"sensor"] = [IdentityStatus(0, 10, 12), IdentityStatus(3, None, 2)]
    known.sequences["events", b"\xff\x00"] = [IdentityStatus(0, 1, 1)]
    for identity in HOSTILE:
        known.sequences["events", identity.encode()] = [IdentityStatus(0, len(identity), len(identity))]
    return known


@pytest.fixture
async def url(worker: KnownWorker) -> AsyncIterator[str]:
    server = StatusServer(worker, "127.0.0.1", worker="worker-a")
    yield await server.start()
    await server.stop()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def get(http: aiohttp.ClientSession, url: str, **parameters: str) -> tuple[int, Any]:
    async with http.get(url, params=parameters) as response:
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in response.headers
        assert response.content_type == "application/json"
        return response.status, await response.json()


async def test_status_tells_worker_and_tables(http: aiohttp.ClientSession, url: str) -> None:
    status, body = await get(http, f"{url}/status")
    assert status == 200
    assert body["worker"] == "worker-a"
    (events,) = body["tables"]
    assert events["stream"] == "events"
    assert events["changelog"] == "events-changelog"
    assert [row["partition"] for row in events["partitions"]] == [0, 3]
    assert events["partitions"][1] == {
        "partition": 3,
        "state": "halted",
        "keys": 1003,
        "input_position": 12345003,
        "input_end": 12345600,
        "changelog_position": 77000,
        "fresh": 9000000,
        "duplicate": 2000000,
        "invalid": 2,
        "error": "offset 7: corrupt",
        "unjudged": 0,
        "deduplicate": True,
        "since": None,
        "evicted_inactive": 30,
        "evicted_displaced": 4,
        "recognised_for_s": 604_800,
        "jumps": 7,
        "recent": {"judged": 100, "invalid": 20, "judged_before": 10000, "invalid_before": 100},
        "restarts": 5,
        "too_late": 0,
        "conflict": 0,
        "missing": None,
        "halted": "CorruptBatch",
        "lag_s": 12.5,
        "fetched_at": None,
        "stable_end": None,
        "stalled": None,
        "store_bytes": 4096,
    }
    assert (events["deduplicate"], events["origin"]) == (True, "default")


async def test_an_identity_by_text_and_by_hex(http: aiohttp.ClientSession, url: str) -> None:
    expected = [
        {"partition": 0, "persisted": 10, "pushed": 12, "verdict": None},
        {"partition": 3, "persisted": None, "pushed": 2, "verdict": None},
    ]
    for parameters in ({"identity": "sensor"}, {"hex": b"sensor".hex()}):
        status, body = await get(http, f"{url}/status/identity", stream="events", **parameters)
        assert (status, body) == (200, {"partitions": expected, "asked": [0, 3], **POLICY})


@pytest.mark.parametrize(
    ("sequence", "verdicts"),
    [
        ("10", ["duplicate", "fresh"]),
        ("12", ["unknown", "fresh"]),
        ("13", ["fresh", "fresh"]),
        ("2", ["duplicate", "unknown"]),
    ],
)
async def test_the_verdict_of_each_partition(
    http: aiohttp.ClientSession, url: str, sequence: str, verdicts: list[str]
) -> None:
    _, body = await get(http, f"{url}/status/identity", stream="events", identity="sensor", sequence=sequence)
    assert [row["verdict"] for row in body["partitions"]] == verdicts


@pytest.mark.parametrize("identity", HOSTILE)
async def test_hostile_identities_are_only_bytes(http: aiohttp.ClientSession, url: str, identity: str) -> None:
    _, body = await get(http, f"{url}/status/identity", stream="events", identity=identity)
    assert [row["persisted"] for row in body["partitions"]] == [len(identity)]


async def test_an_identity_that_is_not_utf8_is_asked_by_hex(http: aiohttp.ClientSession, url: str) -> None:
    _, body = await get(http, f"{url}/status/identity", stream="events", hex="ff00")
    assert [row["persisted"] for row in body["partitions"]] == [1]


async def test_an_unknown_identity_has_no_partitions(http: aiohttp.ClientSession, url: str) -> None:
    assert await get(http, f"{url}/status/identity", stream="events", identity="nobody") == (
        200,
        {"partitions": [], "asked": [0, 3], **POLICY},
    )


@pytest.mark.parametrize("state", ["starting", "restoring", "stopped"])
async def test_a_table_that_is_not_complete_gives_no_verdict(
    http: aiohttp.ClientSession, url: str, worker: KnownWorker, state: str
) -> None:
    worker.tables_now = [table(partition(0, state=state), partition(3))]
    _, body = await get(http, f"{url}/status/identity", stream="events", identity="sensor", sequence="11")
    assert [row["partition"] for row in body["partitions"]] == [3]
    assert body["asked"] == [3]


async def test_identity_partition_needs_none(http: aiohttp.ClientSession, url: str, worker: KnownWorker) -> None:
    worker.tables_now = [table(partition(0), identity="partition")]
    worker.sequences["events", b""] = [IdentityStatus(0, 41, 41)]
    _, body = await get(http, f"{url}/status/identity", stream="events", sequence="42")
    assert body["partitions"] == [{"partition": 0, "persisted": 41, "pushed": 41, "verdict": "fresh"}]


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"identity": "a"}, "serves no stream ''"),
        ({"stream": "<b>", "identity": "a"}, "serves no stream '<b>'"),
        ({"stream": "events"}, "give the identity"),
        ({"stream": "events", "identity": "a", "hex": "61"}, "both as text and as hex"),
        ({"stream": "events", "hex": "6"}, "pairs of the digits"),
        ({"stream": "events", "identity": "a", "sequence": "-1"}, "whole number"),
        ({"stream": "events", "identity": "x" * 2000}, "2,000 bytes"),
    ],
)
async def test_a_question_that_cannot_be_read_is_a_sentence(
    http: aiohttp.ClientSession, url: str, parameters: dict[str, str], sentence: str
) -> None:
    status, body = await get(http, f"{url}/status/identity", **parameters)
    assert status == 400
    assert sentence in body["error"]


async def test_a_megabyte_of_query_is_refused_and_the_next_one_answered(
    http: aiohttp.ClientSession, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL, "aiohttp.server"):
        async with http.get(f"{url}/status/identity?identity={'x' * 2**20}") as response:
            assert response.status == 400
    status, _ = await get(http, f"{url}/status")
    assert status == 200


async def test_other_paths_methods_and_hosts(http: aiohttp.ClientSession, url: str) -> None:
    assert (await get(http, f"{url}/secret"))[0] == 404
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        async with http.request(method, f"{url}/status") as response:
            assert response.status == 405
    async with http.get(f"{url}/status", headers={"Host": "evil.example"}) as response:
        assert response.status == 421
        assert "worker-a" not in await response.text()


async def test_metrics_are_the_providers_figures(http: aiohttp.ClientSession, url: str) -> None:
    async with http.get(f"{url}/metrics") as response:
        families = {family.name: family for family in text_string_to_metric_families(await response.text())}
    records = {(s.labels["partition"], s.labels["verdict"]): s.value for s in families["ratchet_records"].samples}
    assert records["3", "invalid"] == 2
    assert records["0", "fresh"] == 9_000_000
    assert {s.labels["partition"]: s.value for s in families["ratchet_keys"].samples} == {"0": 1000, "3": 1003}
    recognised = {s.labels["partition"]: s.value for s in families["ratchet_recognised_seconds"].samples}
    assert recognised == {"3": 604_800}
    evicted = {(s.labels["partition"], s.labels["reason"]): s.value for s in families["ratchet_evicted"].samples}
    assert evicted == {
        ("0", "inactive"): 0,
        ("0", "displaced"): 0,
        ("3", "inactive"): 30,
        ("3", "displaced"): 4,
    }
    assert [s.value for s in families["ratchet_sequence_jumps"].samples] == [0, 7]
    shares = {(s.labels["partition"], s.labels["of"]): s.value for s in families["ratchet_invalid_share"].samples}
    assert shares == {("0", "minute"): 0, ("0", "before"): 0, ("3", "minute"): 0.2, ("3", "before"): 0.01}
    assert [s.value for s in families["ratchet_invalid_share_jumped"].samples] == [0, 1]
    assert {s.value for s in families["ratchet_input_end"].samples} == {12_345_600}


async def test_probes_and_metrics_answer_under_any_host(
    http: aiohttp.ClientSession, url: str, worker: KnownWorker
) -> None:
    foreign = {"Host": "10.1.2.3:9100"}

    async def ask(path: str) -> tuple[int, str]:
        async with http.get(url + path, headers=foreign) as response:
            return response.status, await response.text()

    assert await ask("/healthz") == (200, "alive\n")
    assert await ask("/readyz") == (200, "ready\n")
    worker.ready = Readiness(["stream events, partition 0: restoring"], ["stream events, partition 3: halted (X)"])
    assert await ask("/readyz") == (
        503,
        "stream events, partition 0: restoring\nstream events, partition 3: halted (X)\n",
    )
    status, text = await ask("/metrics")
    assert status == 200
    assert "ratchet_ready 0.0" in text
    assert (await ask("/status"))[0] == 421
    async with http.post(f"{url}/healthz", headers=foreign) as response:
        assert response.status == 405


async def test_metrics_of_states_lags_and_measures(http: aiohttp.ClientSession, url: str, worker: KnownWorker) -> None:
    measures = StreamMeasures(committed=9, aborted=2, restored=70)
    measures.commit.observe(0.02)
    measures.commit.observe(99)
    measures.halts["CorruptBatch"] += 1
    worker.measured = WorkerMeasures(3, {"events": measures}, {"events": 4})
    async with http.get(f"{url}/metrics") as response:
        text = await response.text()
    for line in (
        'ratchet_partition_state{partition="3",state="halted",stream="events"} 1.0',
        'ratchet_partition_state{partition="3",state="running",stream="events"} 0.0',
        'ratchet_partition_halted{partition="3",reason="CorruptBatch",stream="events"} 1.0',
        'ratchet_partition_halted{partition="0",reason="",stream="events"} 0.0',
        'ratchet_lag_records{partition="0",stream="events"} 600.0',
        'ratchet_lag_seconds{partition="3",stream="events"} 12.5',
        'ratchet_restarts_total{partition="3",stream="events"} 5.0',
        'ratchet_store_bytes{partition="3",stream="events"} 4096.0',
        'ratchet_transactions_total{outcome="aborted",stream="events"} 2.0',
        'ratchet_commit_seconds_bucket{le="0.025",stream="events"} 1.0',
        'ratchet_commit_seconds_count{stream="events"} 2.0',
        'ratchet_halts_total{reason="CorruptBatch",stream="events"} 1.0',
        'ratchet_stream_partitions{stream="events"} 4.0',
        "ratchet_rebalances_total 3.0",
    ):
        assert line in text.splitlines(), line
    assert 'ratchet_lag_seconds{partition="0"' not in text  # not known, and so not 0
    assert "ratchet_build_info{version=" in text
    assert "process_resident_memory_bytes " in text


async def test_metrics_of_a_registry_that_is_passed_in(http: aiohttp.ClientSession, worker: KnownWorker) -> None:
    registry = CollectorRegistry()
    Gauge("depth", "How deep.", registry=registry).set(7)
    server = StatusServer(worker, registry=registry)
    url = await server.start()
    async with http.get(f"{url}/metrics") as response:
        text = await response.text()
    await server.stop()
    assert "depth 7.0" in text
    assert "ratchet_records" not in text


async def test_a_provider_that_fails_is_an_error_for_the_log_not_for_the_reader(http: aiohttp.ClientSession) -> None:
    class Failing(KnownWorker):
        def tables(self) -> list[Any]:
            raise RuntimeError("secret detail")

    server = StatusServer(Failing(), registry=CollectorRegistry())
    url = await server.start()
    status, body = await get(http, f"{url}/status")
    await server.stop()
    assert (status, body) == (500, {"error": "the request failed; the log says why"})


async def test_a_fixed_port_and_one_that_is_taken(worker: KnownWorker) -> None:
    first = StatusServer(worker)
    port = int((await first.start()).rpartition(":")[2])
    with pytest.raises(SetupError, match=rf"port {port}: .*web\.status_port"):
        await StatusServer(worker, "127.0.0.1", port).start()
    await first.stop()
    again = StatusServer(worker, "127.0.0.1", port)
    assert await again.start() == f"http://127.0.0.1:{port}"
    await again.stop()


async def test_nothing_answers_after_stop(http: aiohttp.ClientSession, worker: KnownWorker) -> None:
    server = StatusServer(worker)
    url = await server.start()
    await server.stop()
    await server.stop()
    with pytest.raises(aiohttp.ClientConnectionError):
        await http.get(f"{url}/status")


async def test_policy_and_unjudged_records_are_told(http: aiohttp.ClientSession, url: str, worker: KnownWorker) -> None:
    off = table(partition(0, unjudged=70, deduplicate=False, since=12), partition(3, unjudged=7))
    worker.tables_now = [replace(off, deduplicate=False, origin="stream policy")]
    _, body = await get(http, f"{url}/status/identity", stream="events", identity="nobody", sequence="1")
    assert body == {
        "partitions": [],
        "asked": [0, 3],
        "deduplicate": False,
        "origin": "stream policy",
        "unjudged": 77,
        "can_forget": True,
        "can_replay": True,
        "names_apps": True,
    }
    async with http.get(f"{url}/metrics") as response:
        families = {family.name: family for family in text_string_to_metric_families(await response.text())}
    records = {(s.labels["partition"], s.labels["verdict"]): s.value for s in families["ratchet_records"].samples}
    assert records["0", "unjudged"] == 70
    (sample,) = families["ratchet_deduplicate"].samples
    assert (sample.labels, sample.value) == ({"stream": "events", "origin": "stream policy"}, 0)


async def test_producers_come_in_pages(http: aiohttp.ClientSession, url: str, worker: KnownWorker) -> None:
    names: list[str] = []
    after: dict[str, str] = {}
    while True:
        status, body = await get(http, f"{url}/status/producers", stream="events", limit="3", **after)
        assert (status, body["asked"]) == (200, [0, 3])
        names += [each["name_hex"] for each in body["producers"]]
        if not body["more"]:
            break
        after = {"after": names[-1]}
    assert names == sorted(name.hex() for _, name in worker.sequences)


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"stream": "nobody"}, "serves no stream"),
        ({"stream": "events", "limit": "0"}, "limit must be"),
        ({"stream": "events", "limit": "501"}, "limit must be"),
        ({"stream": "events", "limit": "-1"}, "limit must be"),
        ({"stream": "events", "limit": "١٢"}, "limit must be"),
        ({"stream": "events", "after": "zz"}, "pairs of the digits"),
        ({"stream": "events", "after": "00" * 2000}, "2,000 bytes"),
    ],
)
async def test_a_page_that_cannot_be_read_is_a_sentence(
    http: aiohttp.ClientSession, url: str, parameters: dict[str, str], sentence: str
) -> None:
    status, body = await get(http, f"{url}/status/producers", **parameters)
    assert status == 400
    assert sentence in body["error"]


async def test_a_stream_by_key_knows_no_producers(http: aiohttp.ClientSession, url: str, worker: KnownWorker) -> None:
    worker.tables_now = [table(partition(0), identity="key")]
    status, body = await get(http, f"{url}/status/producers", stream="events")
    assert (status, body["error"]) == (
        400,
        "the identity of stream 'events' is the key, so it has no list of producers",
    )
