"""The embedded broker, how it ends, and which Kafka is chosen."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ratchet.app.local import embedded_kafka, ports, supervisor
from kafka_ratchet.app.local.broker import choose_broker, open_broker, wait_until_reachable
from kafka_ratchet.app.local.connectivity import Reachability
from kafka_ratchet.app.local.embedded_kafka import LET_IN_AGAIN_SOON, EmbeddedBroker
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.errors import BrokerUnavailable, SettingsError, SetupError

ROOT = Path(__file__).parents[3]


@pytest.fixture
def free_port() -> int:
    return ports.free_port()


def wait_until(happened: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    """Return True if the process runs; an ended one that waits to be collected does not."""
    state = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return state not in {"", "Z"}


def write(bootstrap: str, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    failed: list[object] = []  # the error, or None, of each record
    producer.produce(
        topic, value, b"key", partition=0, on_delivery=lambda error, _: failed.append(error) if error else None
    )
    assert producer.flush(30) == 0
    assert not failed


def read(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [message.value() for message in consumer.consume(count, 30)]
    finally:
        consumer.close()


def test_records_and_address_outlive_a_stop_and_a_kill(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "kafka with, odd näme", options=LET_IN_AGAIN_SOON) as broker:
        address = broker.bootstrap
        admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
        admin.create_topics([NewTopic("events", 1, 1)])["events"].result(60)
        write(address, "events", b"before")

        broker.stop()
        assert not broker.is_running
        broker.start()
        write(address, "events", b"after the stop")

        java = broker.java_pid
        broker.kill()
        assert not is_alive(java)
        broker.start()
        assert broker.bootstrap == address
        assert read(address, "events", 2) == [b"before", b"after the stop"]
        java = broker.java_pid
    assert not is_alive(java)
    last_words = "Transition from SHUTTING_DOWN to SHUTDOWN"
    assert broker.log_file.read_text("utf-8").count(last_words) == 2

    same_folder = EmbeddedBroker(broker.folder)
    same_folder.start(wait=False)
    try:
        assert same_folder.bootstrap == address
    finally:
        same_folder.kill()


def test_unknown_topics_are_not_created(broker: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker})
    Producer({"bootstrap.servers": broker, "log_level": 0}).list_topics("mistyped-topic", timeout=60)
    assert "mistyped-topic" not in admin.list_topics(timeout=60).topics


@pytest.mark.matrix
def test_a_broker_that_ends_at_its_start_says_why_and_its_log_is_still_there(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"(?s)ended while starting.*server\.log.*no\.such\.class") as refused:
        EmbeddedBroker(options={"metric.reporters": "no.such.class"}).__enter__()
    named = re.search(r"\((/[^)]*server\.log)\)", str(refused.value))
    assert named is not None
    assert "no.such.class" in Path(named[1]).read_text("utf-8")
    assert not (Path(named[1]).parents[1] / "data").exists()
    shutil.rmtree(Path(named[1]).parents[1])


@pytest.mark.matrix
def test_the_log_of_a_broker_that_ended_by_itself_is_still_there(free_port: int) -> None:
    with EmbeddedBroker(port=free_port) as broker:
        os.kill(broker.java_pid, signal.SIGKILL)
        wait_until(lambda: not broker.is_running, "the broker outlives its Java")
    assert "started" in broker.log_file.read_text("utf-8")
    assert not broker.data_folder.exists()
    shutil.rmtree(broker.folder)


@pytest.mark.matrix
def test_a_second_broker_is_refused_before_it_touches_the_folder_or_a_port_in_use(
    tmp_path: Path, free_port: int
) -> None:
    with start_command("--folder", str(tmp_path / "one")) as first:
        assert first.stdout is not None
        address = first.stdout.readline().strip()
        admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
        admin.create_topics([NewTopic("events", 1, 1)])["events"].result(60)
        second_port = f"--port={address.rpartition(':')[2]}"
        config = (tmp_path / "one" / "server.properties").read_text()
        for arguments, reason in (
            (["--folder", str(tmp_path / "one"), "--port", str(free_port)], f"broker of process {first.pid} runs"),
            (["--folder", str(tmp_path / "one")], f"broker of process {first.pid} runs in it"),
            (["--folder", str(tmp_path / "two"), second_port], "is in use by another program"),
        ):
            refused = run_broker(*arguments)
            assert refused.returncode == 2, refused.stderr
            assert refused.stdout == ""
            assert reason in refused.stderr
            assert "Traceback" not in refused.stderr
        # The healthy one has felt nothing of it.
        write(address, "events", b"still here")
        assert read(address, "events", 1) == [b"still here"]
        assert (tmp_path / "one" / "server.properties").read_text() == config
        first.send_signal(signal.SIGTERM)
        assert first.wait(60) == 0
    with EmbeddedBroker(tmp_path / "one") as again:  # the lock has ended with its broker
        assert read(again.bootstrap, "events", 1) == [b"still here"]


@pytest.mark.matrix
def test_another_kafka_that_answers_at_its_port_is_not_taken_for_it(
    broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port was free when it was asked for, and another Kafka's when it was to be bound."""
    monkeypatch.setattr(embedded_kafka, "is_free", lambda _: True)
    with pytest.raises(SetupError, match=r"(?s)ended while starting.*Address already in use"):
        EmbeddedBroker(tmp_path, port=int(broker.rpartition(":")[2])).start()


@pytest.mark.matrix
def test_a_broker_whose_owner_was_killed_is_waited_for(tmp_path: Path) -> None:
    with start_command("--folder", str(tmp_path)) as first:
        assert first.stdout is not None
        assert first.stdout.readline()
        first.kill()
        first.wait(60)
        with EmbeddedBroker(tmp_path) as second:
            assert second.is_running


def test_a_folder_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(SetupError, match="taken cannot be used"):
        EmbeddedBroker(tmp_path / "taken").start()


@pytest.mark.parametrize("foreign", ["data/orders.csv", "server.properties", "log4j2.properties"])
def test_a_folder_of_another_program_is_refused_and_stays_as_it_is(tmp_path: Path, foreign: str) -> None:
    theirs = tmp_path / foreign
    theirs.parent.mkdir(exist_ok=True)
    theirs.write_text("theirs")
    with pytest.raises(SetupError, match=f"{re.escape(str(tmp_path))} already has .*--folder"):
        EmbeddedBroker(tmp_path).start()
    assert theirs.read_text() == "theirs"
    assert {each.name for each in tmp_path.iterdir()} == {foreign.partition("/")[0], "broker.lock"}


def test_an_interrupted_formatting_is_repeated(tmp_path: Path) -> None:
    (tmp_path / "formatting").touch()
    (tmp_path / "server.properties").write_text("half")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "meta.properties").write_text("half")
    with EmbeddedBroker(tmp_path) as broker:
        assert broker.is_running
    assert (tmp_path / "formatted").exists()
    assert not (tmp_path / "formatting").exists()


OWNER = """
import signal, sys, threading
from pathlib import Path
from kafka_ratchet.app.local.embedded_kafka import EmbeddedBroker
broker = EmbeddedBroker(Path(sys.argv[1]))
# From a thread that ends: the broker belongs to the process, not to the thread.
starter = threading.Thread(target=broker.start, kwargs={"wait": False})
starter.start()
starter.join()
print(broker.java_pid, flush=True)
signal.pause()
"""


def test_java_ends_when_its_owner_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        printed = owner.stdout.readline()
        was_alive = is_alive(int(printed or 0))
        owner.kill()
    java = int(printed)
    assert was_alive
    wait_until(lambda: not is_alive(java), "java outlives its owner")


@pytest.fixture
def supervised() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(*command: str) -> subprocess.Popen[str]:
        supervisor_process = subprocess.Popen(
            [sys.executable, "-I", supervisor.__file__, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(supervisor_process)
        return supervisor_process

    yield start
    for supervisor_process in started:
        supervisor_process.kill()
        supervisor_process.wait()
        for stream in (supervisor_process.stdin, supervisor_process.stdout):
            if stream is not None:
                stream.close()


def first_line(supervisor_process: subprocess.Popen[str]) -> int:
    assert supervisor_process.stdout is not None
    return int(supervisor_process.stdout.readline())


def test_supervisor_leaves_with_the_commands_exit_code(supervised: Callable[..., subprocess.Popen[str]]) -> None:
    assert supervised("sh", "-c", "exit 7").wait(60) == 7


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        (signal.SIGTERM, signal.SIGTERM),
        (signal.SIGINT, signal.SIGTERM),
        (signal.SIGUSR1, signal.SIGKILL),
    ],
)
def test_supervisor_passes_signals_on(
    supervised: Callable[..., subprocess.Popen[str]], sent: signal.Signals, received: signal.Signals
) -> None:
    supervisor_process = supervised("sleep", "600")
    first_line(supervisor_process)
    supervisor_process.send_signal(sent)
    assert supervisor_process.wait(60) == 128 + received


def test_supervisor_stops_the_command_when_its_input_ends(supervised: Callable[..., subprocess.Popen[str]]) -> None:
    supervisor_process = supervised("sleep", "600")
    command = first_line(supervisor_process)
    assert supervisor_process.stdin is not None
    supervisor_process.stdin.close()
    assert supervisor_process.wait(60) == 128 + signal.SIGTERM
    assert not is_alive(command)


def test_command_ends_with_a_killed_supervisor(supervised: Callable[..., subprocess.Popen[str]]) -> None:
    supervisor_process = supervised("sleep", "600")
    command = first_line(supervisor_process)
    supervisor_process.kill()
    wait_until(lambda: not is_alive(command), "the command outlives its supervisor_process")


def run_broker(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kafka_ratchet", "broker", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )


def start_command(*arguments: str) -> subprocess.Popen[str]:
    code = "import typer; from app.cli.local import broker; typer.run(broker)"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )


def test_broker_command_ends_with_its_parents_pipe(free_port: int) -> None:
    with start_command("--with-parent", "--port", str(free_port)) as command:
        assert command.stdout is not None
        assert command.stdin is not None
        assert command.stdout.readline() == f"127.0.0.1:{free_port}\n"
        assert Reachability(f"127.0.0.1:{free_port}", {}).ask(30) is None
        command.stdin.close()
        assert command.wait(60) == 0
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", free_port)) != 0


def test_broker_command_ends_at_sigterm_and_keeps_its_folder(tmp_path: Path) -> None:
    with start_command("--folder", str(tmp_path)) as command:
        assert command.stdout is not None
        address = command.stdout.readline().strip()
        command.send_signal(signal.SIGTERM)
        _, messages = command.communicate(timeout=60)
        assert command.returncode == 0
    assert f"export RATCHET_BOOTSTRAP={address}" in messages
    assert (tmp_path / "data" / "meta.properties").exists()


def test_the_named_broker_is_chosen(broker: str) -> None:
    with open_broker(Settings(bootstrap=broker)) as chosen:
        assert chosen.bootstrap == broker
        assert chosen.log_folder is None


def test_the_broker_of_the_environment_is_chosen(broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_BOOTSTRAP", broker)
    with choose_broker() as bootstrap:
        assert bootstrap == broker


def test_a_command_says_that_its_kafka_is_temporary(capsys: pytest.CaptureFixture[str]) -> None:
    with choose_broker(Settings(bootstrap=None)) as bootstrap:
        assert Reachability(bootstrap, {}).ask(30) is None
    assert "bootstrap is not set, so a temporary Kafka runs" in capsys.readouterr().err


def test_waiting_ends_with_an_error_that_names_the_remedy(free_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_ratchet.app.local.connectivity.MESSAGE_EVERY_S", 600.0)
    said: list[str] = []
    with pytest.raises(BrokerUnavailable, match=r"did not answer within 1\.5 s: .*refused.*RATCHET_BOOTSTRAP"):
        wait_until_reachable(f"127.0.0.1:{free_port}", {}, 1.5, said.append)
    assert len(said) == 1
    assert "does not answer yet" in said[0]


def test_a_broker_that_answers_is_not_spoken_of(broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_ratchet.app.local.connectivity.ASK_FOR_S", 60.0)
    said: list[str] = []
    wait_until_reachable(broker, {"client.id": "patient"}, 60, said.append)
    assert said == []


@pytest.mark.parametrize("options", [{"no.such.option": "1"}, {"security.protocol": "carrier-pigeon"}])
def test_options_that_the_client_refuses_are_a_settings_error(options: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match=rf"kafka\.{next(iter(options))}.*refuse"):
        wait_until_reachable("127.0.0.1:1", options, 5, print)


def test_a_security_option_that_does_not_fit_is_named(broker: str) -> None:
    kafka, deadline = Reachability(broker, {"security.protocol": "ssl"}), time.monotonic() + 60
    while "SSL" not in (reason := kafka.ask(3) or ""):
        assert time.monotonic() < deadline, reason


def test_kafkas_own_tools_read_the_brokers_log(
    broker: str, new_topic: Callable[..., str], broker_log_folder: Path | None, kafka_tool: Callable[..., str]
) -> None:
    topic = new_topic(partitions=1, cleanup_policy="compact")
    write(broker, topic, b"spelled out")
    if broker_log_folder is None:
        printed = kafka_tool(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", broker, "--topic", topic, "--from-beginning", "--max-messages", 1),
        )
    else:
        segment = broker_log_folder / f"{topic}-0" / "00000000000000000000.log"
        printed = kafka_tool("org.apache.kafka.tools.DumpLogSegments", "--print-data-log", "--files", segment)
    assert "spelled out" in printed


def test_no_java_is_a_setup_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", os.fspath(tmp_path))
    with pytest.raises(SetupError, match="there is no Java in JAVA_HOME"), EmbeddedBroker():
        pass
