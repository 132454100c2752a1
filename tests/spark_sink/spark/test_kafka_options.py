"""Client options said twice, for librdkafka and for Java."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.spark.kafka_options import java_options


def test_sasl_with_a_password_that_tries_to_end_its_quotes() -> None:
    client = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": 'p"; x="\\',
        "socket.timeout.ms": "1000",
    }
    assert java_options(client, {}) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="alice" password="p\\"; x=\\"\\\\";',
    }


def test_pem_files_travel_as_text(tmp_path: Path) -> None:
    for name in ("ca", "certificate", "key"):
        (tmp_path / name).write_text(f"-----BEGIN {name}-----\n")
    client = {f"ssl.{name}.location": str(tmp_path / name) for name in ("ca", "certificate", "key")}
    assert java_options({**client, "ssl.key.password": "secret"}, {}) == {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "-----BEGIN ca-----\n",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "-----BEGIN certificate-----\n",
        "ssl.keystore.key": "-----BEGIN key-----\n",
        "ssl.key.password": "secret",
    }


def test_a_missing_pem_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionRefused, match=r"ssl\.ca\.location: .*absent"):
        java_options({"ssl.ca.location": str(tmp_path / "absent")}, {})


@pytest.mark.parametrize(
    "client",
    [
        {"enable.ssl.certificate.verification": "false"},
        {"sasl.oauthbearer.config": "x"},
        {"sasl.mechanism": "GSSAPI", "sasl.username": "u"},
        {"sasl.username": "u"},
    ],
)
def test_security_that_cannot_be_translated_is_refused_not_dropped(client: dict[str, str]) -> None:
    with pytest.raises(OptionRefused, match="--spark-kafka-option"):
        java_options(client, {})


def test_java_options_win() -> None:
    extra = {"sasl.jaas.config": "mine", "security.protocol": "SASL_PLAINTEXT"}
    assert (
        java_options({"security.protocol": "ssl", "sasl.username": "u", "sasl.oauthbearer.config": "x"}, extra) == extra
    )


OIDC = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.token.endpoint.url": "https://id.example.com/token",
    "sasl.oauthbearer.client.id": "sink",
    "sasl.oauthbearer.client.secret": 'p"; x="',
}


def test_a_token_server_is_asked_by_javas_own_login() -> None:
    assert java_options(OIDC, {}) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": "https://id.example.com/token",
        "sasl.login.callback.handler.class": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
        ),
        "sasl.jaas.config": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
            'clientId="sink" clientSecret="p\\"; x=\\"";'
        ),
    }


@pytest.mark.parametrize("without", ["method", "token.endpoint.url", "client.id", "client.secret"])
def test_tokens_that_cannot_be_had_are_refused(without: str) -> None:
    with pytest.raises(OptionRefused, match="OAUTHBEARER: needs"):
        java_options({name: value for name, value in OIDC.items() if name != f"sasl.oauthbearer.{without}"}, {})


@pytest.mark.parametrize("name", ["isolation.level", "Isolation.Level", "bootstrap.servers"])
def test_what_records_are_read_and_from_where_is_not_for_options_to_say(name: str) -> None:
    """Spark would read aborted records, or another Kafka than the one whose offsets were planned and are stored."""
    with pytest.raises(OptionRefused, match=f"Kafka option {name}: the job itself sets"):
        java_options({}, {name: "read_uncommitted"})
