"""The containers that tests use where Docker answers: there each is started, and does what Ratchet needs of it."""

from __future__ import annotations

import ast
import inspect
import uuid

import pytest
from confluent_kafka import Producer

from tests import containers
from tests.folders import package_files

with_docker = pytest.mark.skipif(not containers.docker_answers(), reason="no Docker engine answers")


def test_ratchet_itself_knows_nothing_of_containers() -> None:
    names = {
        name.partition(".")[0]
        for path in package_files()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        for name in (
            [each.name for each in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert "confluent_kafka" in names
    assert not {"docker", "testcontainers"} & names


def test_the_modules_have_what_is_asked_of_them() -> None:
    """Check the modules' names, also without Docker: a container cannot be made there."""
    from testcontainers.community.kafka import KafkaContainer
    from testcontainers.community.localstack import LocalStackContainer
    from testcontainers.community.postgres import PostgresContainer

    assert "driver" in inspect.signature(PostgresContainer.__init__).parameters
    for kind, names in (
        (KafkaContainer, ("with_kraft", "with_env", "get_bootstrap_server")),
        (PostgresContainer, ("get_connection_url",)),
        (LocalStackContainer, ("with_services", "get_client", "get_url")),
    ):
        assert all(callable(getattr(kind, name)) for name in names)


@pytest.mark.docker
@with_docker
def test_kafka_commits_a_transaction() -> None:
    with containers.kafka() as bootstrap:
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": uuid.uuid4().hex})
        producer.init_transactions(60)


@pytest.mark.docker
@with_docker
def test_postgresql_answers() -> None:
    import psycopg

    with containers.postgres() as url, psycopg.connect(url) as database:
        assert database.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.docker
@with_docker
def test_an_s3_puts_an_object_only_where_there_is_none() -> None:
    """Assert the condition on which a commit of Delta depends."""
    import boto3
    from botocore.exceptions import ClientError

    with containers.s3() as options:
        client = boto3.client(
            "s3",
            endpoint_url=options["AWS_ENDPOINT_URL"],
            region_name=options["AWS_REGION"],
            aws_access_key_id=options["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=options["AWS_SECRET_ACCESS_KEY"],
        )
        client.put_object(Bucket="results", Key="a", Body=b"1", IfNoneMatch="*")
        with pytest.raises(ClientError, match="PreconditionFailed"):
            client.put_object(Bucket="results", Key="a", Body=b"2", IfNoneMatch="*")
