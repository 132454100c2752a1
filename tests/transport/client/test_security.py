import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient

from kafka_ratchet.errors import SettingsError
from kafka_ratchet.transport.client.security import client_options


def test_nothing_but_the_bootstrap() -> None:
    assert client_options("a:1,b:2", {}) == {"bootstrap_servers": ["a:1", "b:2"]}


def test_sasl_names_are_translated() -> None:
    options: dict[str, Any] = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "scram-sha-512",
        "sasl.username": "me",
        "sasl.password": "lower Case",
        "sasl.kerberos.service.name": "kafka",
        "client.id": "worker-7",
    }
    assert client_options("a:1", options) == {
        "bootstrap_servers": ["a:1"],
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "me",
        "sasl_plain_password": "lower Case",
        "sasl_kerberos_service_name": "kafka",
        "client_id": "worker-7",
    }
    assert client_options("a:1", {"sasl.mechanisms": "PLAIN"})["sasl_mechanism"] == "PLAIN"


async def test_aiokafka_takes_them() -> None:
    options: dict[str, Any] = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "p",
    }
    client = AIOKafkaClient(**client_options("127.0.0.1:1", options))
    await client.close()


def test_options_that_only_librdkafka_knows_are_left_to_it() -> None:
    options: dict[str, Any] = {"socket.keepalive.enable": True, "statistics.interval.ms": 5_000, "debug": "broker"}
    assert client_options("a:1", options) == {"bootstrap_servers": ["a:1"]}


@pytest.mark.parametrize(
    "name",
    [
        "sasl.oauthbearer.config",
        "sasl.kerberos.keytab",
        "ssl.keystore.location",
        "ssl.ca.pem",
        "ssl.cipher.suites",
        "ssl.ca.locations",
        "security.protocols",
        "enable.ssl.certificate.verify",
    ],
)
def test_a_security_option_that_is_not_understood_is_refused(name: str) -> None:
    with pytest.raises(
        SettingsError, match=rf"^kafka\.{name}: .*does not support this option.*ssl\.ca\.location"
    ) as caught:
        client_options("a:1", {"security.protocol": "SSL", name: "secret text"})
    assert "secret text" not in str(caught.value)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate and its key, behind a password."""
    folder = tmp_path_factory.mktemp("tls")
    crt, key = folder / "c.pem", folder / "k.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-passout", "pass:pw", "-keyout", key, "-out", crt),
            *("-subj", "/CN=ratchet", "-days", "1"),
        ],
        check=True,
        capture_output=True,
    )
    return crt, key


def context(options: dict[str, str | int | bool]) -> ssl.SSLContext:
    found = client_options("a:1", {"security.protocol": "ssl", **options})["ssl_context"]
    assert isinstance(found, ssl.SSLContext)
    return found


def test_tls_checks_the_certificate_and_the_host_name() -> None:
    plain = context({})
    assert (plain.check_hostname, plain.verify_mode) == (True, ssl.CERT_REQUIRED)
    assert "ssl_context" not in client_options("a:1", {"security.protocol": "PLAINTEXT"})


def test_mutual_tls(certificate: tuple[Path, Path]) -> None:
    crt, key = map(str, certificate)
    both = {"ssl.certificate.location": crt, "ssl.key.location": key, "ssl.key.password": "pw"}
    found = context({"ssl.ca.location": crt, **both})
    assert [entry["subject"] for entry in found.get_ca_certs()] == [((("commonName", "ratchet"),),)]
    with pytest.raises(SettingsError, match=r"kafka\.ssl\.\*: .*cannot be read"):
        context({**both, "ssl.key.password": "wrong"})
    with pytest.raises(SettingsError, match=r"kafka\.ssl\.\*: .*cannot be read"):
        context({"ssl.ca.location": "/nowhere/ca.pem"})


def test_checks_are_given_up_only_where_the_options_say_so() -> None:
    name_off = context({"ssl.endpoint.identification.algorithm": "none"})
    assert (name_off.check_hostname, name_off.verify_mode) == (False, ssl.CERT_REQUIRED)
    all_off = context({"enable.ssl.certificate.verification": False})
    assert (all_off.check_hostname, all_off.verify_mode) == (False, ssl.CERT_NONE)
