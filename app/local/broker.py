"""Which Kafka to use: the one in the settings, else one in a container, else an embedded one."""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kafka_ratchet.app.local.connectivity import require_answer, wait_until_reachable
from kafka_ratchet.app.local.embedded_kafka import EmbeddedBroker, node_settings
from kafka_ratchet.app.local.jars import KAFKA_VERSION
from kafka_ratchet.app.local.ports import free_port
from kafka_ratchet.app.log_setup import say
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.transport.client.security import client_options

__all__ = ["ChosenBroker", "EmbeddedBroker", "choose_broker", "named_broker", "open_broker", "wait_until_reachable"]

KAFKA_IMAGE = f"apache/kafka:{KAFKA_VERSION}"

DOCKER_LIMIT_S = 3
"""An engine on this machine answers in milliseconds; a person waits for this."""

CONTAINER_LIMIT_S = 120.0
"""Counted from when the image is there; a container on a slow laptop needs half a minute."""


@dataclass(frozen=True)
class ChosenBroker:
    """A Kafka that has answered."""

    bootstrap: str
    log_folder: Path | None
    """Kafka's log.dirs where they are on this machine (the embedded broker), else None."""


@contextmanager
def choose_broker(settings: Settings | None = None) -> Iterator[str]:
    """The bootstrap of the Kafka to use; what was started for it ends with the context. See `open_broker`."""
    with open_broker(settings) as chosen:
        yield chosen.bootstrap


@contextmanager
def named_broker(settings: Settings, *, as_worker: bool = True) -> Iterator[str]:
    """The bootstrap of the named Kafka, for a command that only looks. It starts no broker, and does not wait for one.

    Args:
        settings: the whole of them.
        as_worker: whether the command asks in the worker's way, so with the worker's client.

    Raises:
        SettingsError: none is named, or a client refuses its options.
        BrokerUnavailable: it does not answer within a few seconds.
    """
    if settings.bootstrap is None:
        raise SettingsError("say which Kafka the workers use: bootstrap in the settings file, or RATCHET_BOOTSTRAP")
    if as_worker:
        client_options(settings.bootstrap, settings.kafka)
    require_answer(settings.bootstrap, settings.kafka)
    yield settings.bootstrap


@contextmanager
def open_broker(settings: Settings | None = None) -> Iterator[ChosenBroker]:
    """The Kafka to use.

    In this order: `settings.bootstrap` (without settings: `RATCHET_BOOTSTRAP`), once it answers; a container, where
    testcontainers is installed and a Docker engine answers; an embedded broker in a temporary folder.

    Raises:
        BrokerUnavailable: the named one did not answer within `settings.kafka_timeout_s`.
        SetupError: the embedded one cannot be started.
    """
    settings = settings or Settings(bootstrap=os.environ.get("RATCHET_BOOTSTRAP") or None)
    if settings.bootstrap is not None:
        wait_until_reachable(settings.bootstrap, settings.kafka, settings.kafka_timeout_s, say)
        yield ChosenBroker(settings.bootstrap, None)
        return
    if docker_answers():
        with _container() as bootstrap:
            yield ChosenBroker(bootstrap, None)
    else:
        with EmbeddedBroker() as embedded:
            yield ChosenBroker(embedded.bootstrap, embedded.data_folder)


def docker_answers() -> bool:
    """Whether testcontainers is installed and a Docker engine answers; a Docker client alone is not enough."""
    try:
        docker = importlib.import_module("docker")
        importlib.import_module("testcontainers.core.container")
    except ImportError:
        return False
    address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if address.startswith("unix://"):
        # Docker's library leaves its socket open where nobody listens behind this one.
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(DOCKER_LIMIT_S)
            try:
                probe.connect(address.removeprefix("unix://"))
            except OSError:
                return False
    try:
        client = docker.from_env(timeout=DOCKER_LIMIT_S)
    except docker.errors.DockerException:
        return False
    try:
        return bool(client.ping())
    except (docker.errors.DockerException, OSError):
        return False
    finally:
        client.close()


@contextmanager
def _container() -> Iterator[str]:
    """Apache's own image with the embedded broker's settings.

    Kafka tells its clients its address, so the port outside has to be known before the start: a free one is taken.
    """
    from testcontainers.core.container import DockerContainer

    port = free_port()
    container = DockerContainer(KAFKA_IMAGE).with_bind_ports(port, port)
    bootstrap = f"{container.get_docker_client().host()}:{port}"
    settings = {
        **node_settings(1, {1: "127.0.0.1:9093"}),
        "listeners": f"PLAINTEXT://0.0.0.0:{port},CONTROLLER://127.0.0.1:9093",
        "advertised.listeners": f"PLAINTEXT://{bootstrap}",
        "log.dirs": "/tmp/kraft-combined-logs",  # noqa: S108 - inside the container
    }
    for name, value in settings.items():
        container.with_env("KAFKA_" + name.upper().replace(".", "_"), value)
    say(f"starting {KAFKA_IMAGE} in a container")
    with container:
        wait_until_reachable(bootstrap, {}, CONTAINER_LIMIT_S, say)
        yield bootstrap
