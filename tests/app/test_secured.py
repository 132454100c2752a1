"""Every part against a real Kafka behind TLS and logins, and what each says where one of them is refused."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from kafka_ratchet.app.cli import run
from kafka_ratchet.app.doctor.findings import Mark
from kafka_ratchet.app.doctor.run import diagnose
from kafka_ratchet.app.local.ports import free_port
from kafka_ratchet.app.settings import load
from kafka_ratchet.app.status.results import planner_of
from kafka_ratchet.errors import KafkaRefused
from kafka_ratchet.producers import Producer
from kafka_ratchet.spark_sink.errors import KafkaUnavailable
from tests.app.worker_process import Site, WorkerProcess
from tests.secured_broker import PASSWORD, USER, Secured, secured_broker

EVENTS = 50
STREAM = """
[streams.events]
input = "{app}.in"
output = "{app}.out"
dead_letters = "{app}.dead"
partitions = 1
dense = true

[sink]
path = "{folder}/table"
"""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_broker(tmp_path_factory.mktemp("secured")) as kafka:
        yield kafka


class SecuredSite(Site):
    """An application whose parts come in by one way; the administrator looks from outside."""

    def __init__(self, folder: Path, kafka: Secured, way: str, listener: str = "") -> None:
        app = f"{way.lower()}-{uuid.uuid4().hex[:8]}"
        options = "".join(f'"{name}" = {json.dumps(value)}\n' for name, value in kafka.options(way).items())
        toml = STREAM.format(app=app, folder=folder)
        super().__init__(folder, kafka.address(listener or way), app, f"{toml}\n[kafka]\n{options}")
        (folder / "administrator").mkdir()
        self.administrator = Site(folder / "administrator", kafka.administrator, app, "")
        self.input = f"{app}.in"

    def publish(self, first: int = 1, *how: str) -> None:
        """Fifty more events."""
        file = self.folder / f"from-{first}.ndjson"
        file.write_text("".join(json.dumps({"number": first + each}) + "\n" for each in range(EVENTS)))
        self.run("publish", str(file), "--producer", f"till-{first}", "--topic", self.input, *how)

    def run(self, *arguments: str) -> str:
        done = self.command(*arguments)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout


@pytest.mark.matrix
def test_producer_worker_and_status_over_tls_with_a_password(secured: Secured, tmp_path: Path) -> None:
    site = SecuredSite(tmp_path, secured, "SCRAM")
    worker = WorkerProcess(site)
    try:
        worker.start()
        worker.wait_for(lambda: worker.text().count("lane runs") == 1, "a lane")
        site.publish()
        worker.wait_for(lambda: site.administrator.position(site.input) == EVENTS, "the commit")
        said = site.run("status", "--producer", "till-1", "--sequence", str(EVENTS))
        assert "persisted" in said, said
        site.publish(51, "--batches")
        worker.wait_for(lambda: site.administrator.position(site.input) == 2 * EVENTS, "the commit of the batches")
        worker.stop()
    finally:
        worker.end()


WRONG = {
    "its CA is not known": (
        "LOGIN",
        {"ssl.ca.location": "other-ca.pem"},
        "the certificate of Kafka at {server} is refused: it is not signed by a CA that this client knows",
    ),
    "host name": (
        "ELSEWHERE",
        {},
        "the certificate of Kafka at {server} is refused: it is made out for other host names",
    ),
    "expired": ("EXPIRED", {}, "the certificate of Kafka at {server} is refused: it has expired"),
    "password": ("LOGIN", {"sasl.password": "of last year"}, "Kafka at {server} refuses the login by SCRAM-SHA-512"),
    "no certificate": (
        "MTLS",
        {"security.protocol": "SSL"},
        "Kafka at {server} refuses this client, because it has no certificate or a wrong one",
    ),
    "unknown certificate": (
        "MTLS",
        {
            "security.protocol": "SSL",
            "ssl.certificate.location": "stranger.pem",
            "ssl.key.location": "stranger.key",
        },
        "Kafka at {server} refuses this client, because it has no certificate or a wrong one",
    ),
    "secret": (
        "OIDC",
        {"sasl.oauthbearer.client.secret": "of last year"},
        "the token server 127.0.0.1:{port} gives no token",
    ),
}


def wrong_settings(kafka: Secured, folder: Path, which: str) -> str:
    """Write ratchet.toml into the folder; returns the sentence that is to be said."""
    listener, differs, sentence = WRONG[which]
    options = kafka.options("OIDC" if listener == "OIDC" else "SCRAM")
    server = kafka.address(listener)
    for name, value in differs.items():
        options[name] = str(kafka.folder / value) if name.startswith("ssl.") else value
    pairs = "".join(f'"{name}" = {json.dumps(value)}\n' for name, value in options.items())
    toml = STREAM.format(app="refused", folder=folder)
    (folder / "ratchet.toml").write_text(f'app = "refused"\nbootstrap = "{server}"\n{toml}\n[kafka]\n{pairs}')
    return sentence.format(server=server, port=kafka.tokens.url.rpartition(":")[2])


def test_what_is_refused_is_said_in_one_sentence(
    secured: Secured, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for which in ("its CA is not known", "host name", "password"):
        sentence = wrong_settings(secured, tmp_path, which)
        assert run(["tables"]) == 2
        out, err = capfd.readouterr()
        assert (out, err.count("\n")) == ("", 1), which
        assert err.startswith(f"ratchet: {sentence}"), which
    (said,) = (each for each in diagnose() if each.mark is Mark.ERROR)
    assert said.check == "broker"
    assert said.sentence.startswith(sentence)


COMMANDS = (
    ("worker",),
    ("status", "--producer", USER, "--sequence", "1"),
    ("tables",),
    ("producers",),
    ("gaps",),
    ("verify",),
    ("why", "--producer", USER, "--sequence", "1"),
    ("policy", "get"),
    ("dead-letters", "list"),
    ("publish", "lines.txt", "--producer", "p"),
    ("sink", "--mode", "batch"),
    ("sink", "status"),
    ("resume",),
    ("state", "export", "state.ndjson"),
    ("forget", "--identity", "k"),
)


@pytest.mark.long
@pytest.mark.parametrize("which", WRONG)
def test_every_command_says_what_is_refused_and_ends(
    secured: Secured, which: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lines.txt").write_text("one\n")
    sentence = wrong_settings(secured, tmp_path, which)
    said_else = {}
    for command in COMMANDS:
        code = run(command)
        out, err = capfd.readouterr()
        if code != 2 or sentence not in err or "Traceback" in out + err:
            said_else[command] = (code, err)
    assert said_else == {}
    settings = load()
    planner = planner_of(settings.bootstrap or "", settings, "any")
    with pytest.raises(
        KafkaUnavailable, match=r"topic any: Kafka at 127.0.0.1:\d+ refuses this client's login or certificate"
    ):
        planner.offset_range()
    with pytest.raises(KafkaRefused) as refused:
        Producer("any", "till-1", options={"bootstrap.servers": settings.bootstrap or "", **settings.kafka})
    assert sentence in str(refused.value)
    (said,) = (each for each in diagnose() if each.mark is Mark.ERROR)
    assert said.sentence.startswith(sentence)


@pytest.mark.long
@pytest.mark.parametrize("way", ["TLS", "MTLS", "SCRAM", "PLAIN", "OIDC"])
def test_every_part_does_its_work_by_every_way_in(secured: Secured, way: str, tmp_path: Path) -> None:
    site = SecuredSite(tmp_path, secured, way)
    worker = WorkerProcess(site)
    try:
        worker.start()
        worker.wait_for(lambda: worker.text().count("lane runs") == 1, "a lane")
        site.publish()
        worker.wait_for(lambda: site.administrator.position(site.input) == EVENTS, "the commit")
        for command in (
            ("policy", "set", "off", "--global"),
            ("policy", "get"),
            ("tables",),
            ("producers",),
            ("why", "--producer", "till-1", "--sequence", "0"),
            ("dead-letters", "list"),
            ("sink", "--mode", "batch"),
            ("sink", "status"),
            ("doctor",),
            ("state", "export", str(tmp_path / "state.ndjson")),
        ):
            site.run(*command)
        assert f"{EVENTS} fresh" in site.run("verify", "--results")
        with page_of(site) as address:
            with urlopen(f"{address}/", timeout=60) as answer:  # noqa: S310 - our own
                assert answer.status == 200
                assert "events" in answer.read().decode()
        worker.stop()
    finally:
        worker.end()


@contextmanager
def page_of(site: Site) -> Iterator[str]:
    """A `ratchet web` of that application; its address."""
    port = free_port()
    arguments = ("web", "--config", str(site.config), "--port", str(port))
    with (site.folder / "page.log").open("w+") as log:
        page = subprocess.Popen(
            [sys.executable, "-m", "kafka_ratchet", *arguments], env=site.environment, stdout=log, stderr=log
        )
        try:
            for _ in range(600):
                try:  # by a connection: who binds the port to see whether it is free takes it from the page
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            page.terminate()
            page.wait(60)


@pytest.mark.long
def test_a_password_changed_while_a_worker_runs_stops_nothing_for_good(secured: Secured, tmp_path: Path) -> None:
    """The broker ends each session after four seconds, so that the new password is asked for."""
    site = SecuredSite(tmp_path, secured, "SCRAM", listener="SHORT")
    worker = WorkerProcess(site)
    refused = f"Kafka at {secured.address('SHORT')} refuses the login by SCRAM-SHA-512"
    try:
        worker.start()
        worker.wait_for(lambda: worker.text().count("lane runs") >= 1, "a lane")
        site.publish(1)
        worker.wait_for(lambda: site.administrator.position(site.input) == EVENTS, "the commit")
        secured.set_password("another")
        worker.wait_for(lambda: refused in worker.text(), "the sentence")
        secured.set_password(PASSWORD)
        site.publish(2)
        worker.wait_for(lambda: site.administrator.position(site.input) == 2 * EVENTS, "the commits")
        assert "lost 0, doubled 0" in site.run("verify")
        assert "Traceback" not in worker.text()
        worker.stop()
    finally:
        secured.set_password(PASSWORD)
        worker.end()


@pytest.mark.long
def test_tokens_that_end_are_fetched_anew_and_a_server_that_gives_none_is_waited_for(
    secured: Secured, tmp_path: Path
) -> None:
    site = SecuredSite(tmp_path, secured, "OIDC", listener="SHORT")
    worker = WorkerProcess(site)
    secured.tokens.lasts_s = 3
    try:
        worker.start()
        worker.wait_for(lambda: worker.text().count("lane runs") >= 1, "a lane")
        site.publish(1)
        worker.wait_for(lambda: site.administrator.position(site.input) == EVENTS, "the commit")
        secured.tokens.refuses = True
        worker.wait_for(lambda: "gives no token" in worker.text(), "the sentence")
        secured.tokens.refuses = False
        site.publish(2)
        worker.wait_for(lambda: site.administrator.position(site.input) == 2 * EVENTS, "the commits")
        assert "lost 0, doubled 0" in site.run("verify")
        assert "Traceback" not in worker.text()
        worker.stop()
    finally:
        secured.tokens.lasts_s, secured.tokens.refuses = 300, False
        worker.end()
