"""Kafka options of the sink's two clients.

The driver plans with librdkafka; the executors read with Java's client.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kafka_ratchet.spark_sink.errors import OptionRefused

SAME_IN_JAVA = frozenset({"client.id", "client.rack", "sasl.kerberos.service.name", "ssl.key.password"})

OF_THE_JOB = frozenset({"isolation.level", "bootstrap.servers"})
"""Options of Java's client that the job sets itself. Other values would let Spark read aborted records, or records of
another Kafka cluster."""

LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}

OIDC_LOGIN = {
    "sasl.login.callback.handler.class": (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
    ),
}
OIDC_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
TOKEN = "sasl.oauthbearer."  # noqa: S105 - how options begin
OIDC_OPTIONS = frozenset(f"{TOKEN}{name}" for name in ("method", "client.id", "client.secret", "scope"))
"""Options of librdkafka for a token server that become part of the login in Java."""

PEM_TEXTS = {
    "ssl.ca": "ssl.truststore.certificates",
    "ssl.certificate": "ssl.keystore.certificate.chain",
    "ssl.key": "ssl.keystore.key",
}
"""Prefixes of librdkafka's options for PEM data, each with Java's option for the text (KIP-651). The prefix is
followed by `.location` for a file, and by `.pem` for the text."""


def java_options(client: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """Translate the security options of librdkafka into those of Java's client.

    PEM files become text, so that executors on other machines need no files. Options that only tune librdkafka are left
    out.

    Args:
        client: options with librdkafka's names.
        extra: options with Java's names, which replace translated ones and may stand for options without a translation.

    Raises:
        OptionRefused: a security option has no translation, or names a file that cannot be read; or an option is one
            of `OF_THE_JOB`.
    """
    for name in extra:
        if name.strip().lower() in OF_THE_JOB:  # Spark's options are the same in capitals
            raise OptionRefused(
                f"Kafka option {name}: the job itself sets which Kafka cluster is read, and that only committed "
                "records are read. Leave it out of --spark-kafka-option"
            )
    java: dict[str, str] = {}
    untranslated = []
    for name, value in client.items():
        if name in SAME_IN_JAVA:
            java[name] = value
        elif name == "security.protocol":
            java[name] = value.upper()
        elif name in {"sasl.mechanism", "sasl.mechanisms"}:
            java["sasl.mechanism"] = value.upper()
        elif name == "ssl.endpoint.identification.algorithm":
            java[name] = "" if value == "none" else value
        elif name == "ssl.keystore.location":
            java |= {name: value, "ssl.keystore.type": "PKCS12"}
        elif name == "ssl.keystore.password":
            java[name] = value
        elif name.rpartition(".")[0] in PEM_TEXTS and name.endswith((".location", ".pem")):
            java |= _pem(name, value)
        elif name in {"sasl.username", "sasl.password"} | OIDC_OPTIONS:
            continue
        elif name == f"{TOKEN}token.endpoint.url":
            java[name] = value
        elif name.startswith(("sasl.", "ssl.", "security.", "enable.ssl.")):
            untranslated.append(name)
    if java.get("sasl.mechanism") == "OAUTHBEARER" and "sasl.jaas.config" not in extra:
        java |= {**OIDC_LOGIN, "sasl.jaas.config": _token_login(client)}
    elif "sasl.username" in client and "sasl.jaas.config" not in extra:
        java["sasl.jaas.config"] = _login(java.get("sasl.mechanism", ""), client)
    if untranslated and not any(name.startswith(("sasl.", "ssl.", "security.")) for name in extra):
        raise OptionRefused(
            f"Kafka option {untranslated[0]}: Spark's reader has no option of that name. Give its Java equivalent "
            "with --spark-kafka-option"
        )
    return java | dict(extra)


def _pem(name: str, value: str) -> dict[str, str]:
    prefix, _, kind = name.rpartition(".")
    if kind == "location":
        try:
            value = Path(value).read_text("ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise OptionRefused(
                f"Kafka option {name}: {value} is not a readable PEM file ({error}). Correct the path or the file"
            ) from None
    store = "ssl.truststore.type" if prefix == "ssl.ca" else "ssl.keystore.type"
    return {PEM_TEXTS[prefix]: value, store: "PEM"}


def _login(mechanism: str, client: Mapping[str, str]) -> str:
    module = LOGIN_MODULES.get(mechanism)
    if module is None:
        raise OptionRefused(
            f"sasl.username with sasl.mechanism {mechanism or '(none)'}: use one of {', '.join(LOGIN_MODULES)}, or "
            "give sasl.jaas.config with --spark-kafka-option"
        )
    username, password = (_quoted(client.get(f"sasl.{part}", "")) for part in ("username", "password"))
    return f"{module} required username={username} password={password};"


def _token_login(client: Mapping[str, str]) -> str:
    """Return the login for Java's client at the token server, with librdkafka's credentials."""
    needed = [f"{TOKEN}{name}" for name in ("token.endpoint.url", "client.id", "client.secret")]
    missing = [name for name in needed if not client.get(name)]
    if client.get(f"{TOKEN}method", "").lower() != "oidc" or missing:
        raise OptionRefused(
            f"sasl.mechanism OAUTHBEARER: needs sasl.oauthbearer.method oidc with {', '.join(needed)}, or "
            "sasl.jaas.config with --spark-kafka-option"
        )
    given = {"clientId": client[needed[1]], "clientSecret": client[needed[2]], "scope": client.get(f"{TOKEN}scope", "")}
    return f"{OIDC_MODULE} required {' '.join(f'{name}={_quoted(value)}' for name, value in given.items() if value)};"


def _quoted(value: str) -> str:
    """Quote a text for a JAAS login, and escape quotes and backslashes in it."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
