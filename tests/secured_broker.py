"""One Kafka with a listener for each way in, and what a client needs to come in there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from kafka_ratchet.app.local.embedded_kafka import EmbeddedBroker
from kafka_ratchet.app.local.ports import free_port
from tests.certificates import Authority
from tests.token_server import CLIENT, SECRET, TokenServer

USER, PASSWORD = "till-1", "p\"; the till's"
_LOGIN = "org.apache.kafka.common.security"
_LISTENERS = {
    "PLAINTEXT": "PLAINTEXT",
    "TLS": "SSL",
    "MTLS": "SSL",
    "LOGIN": "SASL_SSL",
    "SHORT": "SASL_SSL",
    "ELSEWHERE": "SASL_SSL",
    "EXPIRED": "SASL_SSL",
}
"""LOGIN takes SCRAM, PLAIN and tokens. SHORT too, and ends each session soon.
ELSEWHERE's certificate is another host's, and EXPIRED's has expired."""
REAUTHENTICATE_MS = 4_000
"""SHORT asks for a new login after this time: what a client does whose password or token is gone is seen soon."""


@dataclass(frozen=True)
class Secured:
    """A Kafka that runs, its addresses by listener, and the files of its clients."""

    addresses: dict[str, str]
    folder: Path
    tokens: TokenServer
    broker: EmbeddedBroker

    @property
    def administrator(self) -> str:
        """host:port for tests to look at it."""
        return self.addresses["PLAINTEXT"]

    def options(self, way: str) -> dict[str, str | int | bool]:
        """Client options for TLS, MTLS, SCRAM, PLAIN, OIDC or TOKEN (from the file `token`)."""
        ca: dict[str, str | int | bool] = {"ssl.ca.location": str(self.folder / "ca.pem")}
        if way == "TLS":
            return {"security.protocol": "SSL", **ca}
        if way == "MTLS":
            return {"security.protocol": "SSL", **ca, **self.certificate("client")}
        login = {"security.protocol": "SASL_SSL", **ca}
        if way in {"SCRAM", "PLAIN"}:
            mechanism = "SCRAM-SHA-512" if way == "SCRAM" else way
            return {**login, "sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": PASSWORD}
        login["sasl.mechanism"] = "OAUTHBEARER"
        if way == "TOKEN":
            return {**login, "sasl.oauthbearer.token.endpoint.url": (self.folder / "token").as_uri()}
        return {
            **login,
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": f"{self.tokens.url}/token",
            "sasl.oauthbearer.client.id": CLIENT,
            "sasl.oauthbearer.client.secret": SECRET,
            "sasl.oauthbearer.scope": "kafka",
        }

    def certificate(self, name: str) -> dict[str, str | int | bool]:
        """Options with a client's certificate."""
        return {
            "ssl.certificate.location": str(self.folder / f"{name}.pem"),
            "ssl.key.location": str(self.folder / f"{name}.key"),
        }

    def address(self, way: str) -> str:
        """Return the address of a listener, by its name."""
        return self.addresses.get(way, self.addresses["LOGIN"])

    def set_password(self, password: str) -> None:
        """The user's, for SCRAM."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        admin = AdminClient({"bootstrap.servers": self.administrator})
        one = UserScramCredentialUpsertion(USER, info, password.encode())
        for done in admin.alter_user_scram_credentials([one]).values():
            done.result(60)


def _broker_options(addresses: dict[str, str], controller: str, folder: Path, tokens: TokenServer) -> dict[str, str]:
    listeners = ",".join(f"{name}://{address}" for name, address in addresses.items())
    protocols = {**_LISTENERS, "CONTROLLER": "PLAINTEXT"}
    options = {
        "listeners": f"{listeners},CONTROLLER://{controller}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "server.pem"),
        "listener.name.mtls.ssl.client.auth": "required",
        "listener.name.elsewhere.ssl.keystore.type": "PEM",
        "listener.name.elsewhere.ssl.keystore.location": str(folder / "elsewhere.pem"),
        "listener.name.expired.ssl.keystore.type": "PEM",
        "listener.name.expired.ssl.keystore.location": str(folder / "expired.pem"),
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN,OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": f"{tokens.url}/keys",
        "sasl.oauthbearer.expected.audience": "kafka",
    }
    password = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    options["listener.name.short.connections.max.reauth.ms"] = str(REAUTHENTICATE_MS)
    for listener in ("login", "short", "elsewhere", "expired"):
        name = f"listener.name.{listener}"
        options |= {
            f"{name}.plain.sasl.jaas.config": (
                f'{_LOGIN}.plain.PlainLoginModule required user_{USER}="{password}";'.replace("\\", "\\\\")
            ),
            f"{name}.scram-sha-512.sasl.jaas.config": f"{_LOGIN}.scram.ScramLoginModule required;",
            f"{name}.oauthbearer.sasl.jaas.config": f"{_LOGIN}.oauthbearer.OAuthBearerLoginModule required;",
            f"{name}.oauthbearer.sasl.server.callback.handler.class": (
                f"{_LOGIN}.oauthbearer.OAuthBearerValidatorCallbackHandler"
            ),
        }
    return options


@contextmanager
def secured_broker(folder: Path) -> Iterator[Secured]:
    """A Kafka in this folder, with files of certificates."""
    good, other = Authority(folder, "ca"), Authority(folder, "other-ca")
    good.sign("server")
    good.sign("client")
    good.sign("elsewhere", host="kafka.example.com")
    good.sign("expired", lasts=-timedelta(days=1))
    other.sign("stranger")
    addresses = {name: f"127.0.0.1:{free_port()}" for name in _LISTENERS}
    controller = f"127.0.0.1:{free_port()}"
    with TokenServer() as tokens:
        options = _broker_options(addresses, controller, folder, tokens)
        port = int(addresses["PLAINTEXT"].rpartition(":")[2])
        broker = EmbeddedBroker(folder / "kafka", port=port, voters={1: controller}, node_id=1, options=options)
        java = os.environ.get("JAVA_TOOL_OPTIONS", "")
        os.environ["JAVA_TOOL_OPTIONS"] = (
            f"{java} -Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={tokens.url}/keys".strip()
        )
        try:
            broker.start()
        finally:
            os.environ["JAVA_TOOL_OPTIONS"] = java
        try:
            secured = Secured(addresses, folder, tokens, broker)
            secured.set_password(PASSWORD)
            yield secured
        finally:
            broker.stop()
