"""Kafka, PostgreSQL and an S3 in containers, by testcontainers' own modules, for machines on which Docker answers.

Modules are imported where they are used: every test run asks whether Docker answers.
"""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kafka_ratchet.app.local.connectivity import wait_until_reachable
from kafka_ratchet.app.local.embedded_kafka import node_settings

KAFKA: Final = "confluentinc/cp-kafka:7.9.0"
POSTGRES: Final = "postgres:17.5-bookworm"
"""Image of docker-compose.yml."""
S3: Final = "localstack/localstack:4.4.0"
DOCKER_LIMIT_S: Final = 3
"""An engine on this machine answers in milliseconds."""
START_LIMIT_S: Final = 120.0
"""Counted from when the image is there."""
OF_ITS_OWN: Final = ("process.", "node.", "controller.", "inter.broker.", "listener.", "share.")
"""Settings of a broker that the module makes itself, or that this Kafka does not know."""


def docker_answers() -> bool:
    """Return True if a Docker engine answers; a Docker client alone is not enough."""
    address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if address.startswith("unix://"):
        # Docker's library leaves its socket open where nobody listens behind this one.
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(DOCKER_LIMIT_S)
            try:
                probe.connect(address.removeprefix("unix://"))
            except OSError:
                return False
    import docker

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
def kafka() -> Iterator[str]:
    """host:port of a Kafka with the settings of the embedded one."""
    from testcontainers.community.kafka import KafkaContainer

    container = KafkaContainer(KAFKA).with_kraft()
    for name, value in node_settings(1, {1: "localhost:9094"}).items():
        if not name.startswith(OF_ITS_OWN):
            container.with_env("KAFKA_" + name.upper().replace(".", "_"), value)
    try:
        container.start(timeout=round(START_LIMIT_S))  # 30 s of the module's own do not do on a busy machine
        bootstrap = container.get_bootstrap_server()
        wait_until_reachable(bootstrap, {}, START_LIMIT_S, print)
        yield bootstrap
    finally:
        container.stop()


@contextmanager
def postgres() -> Iterator[str]:
    """The address of a PostgreSQL, with its password."""
    from testcontainers.community.postgres import PostgresContainer

    with PostgresContainer(POSTGRES, driver=None) as container:
        yield container.get_connection_url()


@contextmanager
def s3() -> Iterator[dict[str, str]]:
    """Storage options of an S3 with one bucket, `results`."""
    from testcontainers.community.localstack import LocalStackContainer

    container = LocalStackContainer(S3, region_name="us-east-1").with_services("s3")
    try:
        with warnings.catch_warnings():
            # The module itself waits with the function that its package has deprecated.
            warnings.filterwarnings("ignore", "The wait_for_logs function", DeprecationWarning)
            container.start()
        container.get_client("s3").create_bucket(Bucket="results")
        yield {
            "AWS_ENDPOINT_URL": container.get_url(),
            "AWS_REGION": container.region_name,
            "AWS_ACCESS_KEY_ID": "testcontainers-localstack",
            "AWS_SECRET_ACCESS_KEY": "testcontainers-localstack",
            "AWS_ALLOW_HTTP": "true",
        }
    finally:
        container.stop()
