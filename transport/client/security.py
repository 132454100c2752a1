"""Translation of Kafka client options from librdkafka's names to aiokafka's."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from kafka_ratchet.errors import SettingsError
from kafka_ratchet.producers.tls import Options, tls_context

_DIRECT = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "sasl.kerberos.service.name": "sasl_kerberos_service_name",
    "client.id": "client_id",
}
_TOKEN = {
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.scope",
}
"""Options of `kafka_ratchet.transport.client.tokens` for a token server."""
_SSL = {
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "enable.ssl.certificate.verification",
}
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER")
_SECURITY = ("security.", "sasl.", "ssl.", "enable.ssl.")
"""Prefixes of options that decide access. Such an option is refused if aiokafka lacks it; others are ignored."""


def client_options(bootstrap: str, options: Options) -> dict[str, Any]:
    """Return keyword arguments for aiokafka clients.

    Args:
        bootstrap: host:port[,host:port].
        options: as in the settings' `kafka` section. An option that only librdkafka has is ignored, unless it decides
            access.

    Raises:
        SettingsError: a security option has no counterpart in aiokafka, or an unusable value; or a certificate cannot
            be read.
    """
    known: dict[str, Any] = {"bootstrap_servers": bootstrap.split(",")}
    for name, value in options.items():
        if name in _DIRECT:
            known[_DIRECT[name]] = (
                str(value).upper() if name.startswith(("security.", "sasl.mechanism")) else str(value)
            )
        elif name.startswith(_SECURITY) and name not in _SSL | _TOKEN:
            raise SettingsError(
                f"kafka.{name}: the worker does not support this option. Remove it, or use one of "
                f"{', '.join(sorted({*_DIRECT, *_SSL, *_TOKEN}))}"
            )
    _check_login(known, options)
    if known.get("sasl_mechanism") == "OAUTHBEARER" and known.get("security_protocol", "").startswith("SASL"):
        from kafka_ratchet.transport.client.tokens import Tokens  # needs aiokafka, which not every installation has

        known["sasl_oauth_token_provider"] = Tokens(options)
    if known.get("security_protocol") in {"SSL", "SASL_SSL"}:
        known["ssl_context"] = tls_context(options)
    return known


def _check_login(known: Mapping[str, Any], options: Options) -> None:
    """Refuse login options on which aiokafka would fail with an error that does not name the option."""
    protocol, mechanism = known.get("security_protocol", "PLAINTEXT"), known.get("sasl_mechanism", "PLAIN")
    for option, given, words in (
        ("security.protocol", protocol, PROTOCOLS),
        ("sasl.mechanism", mechanism, MECHANISMS if protocol.startswith("SASL") else (mechanism,)),
    ):
        if given not in words:
            raise SettingsError(
                f"kafka.{option}: the worker does not support the given value. Write one of {', '.join(words)}"
            )
    if not protocol.startswith("SASL"):
        return
    if mechanism == "OAUTHBEARER":
        _check_token(options)
    elif mechanism == "GSSAPI":
        if importlib.util.find_spec("gssapi") is None:
            raise SettingsError(
                "kafka.sasl.mechanism: GSSAPI needs the Python package gssapi, which is not installed. Install it"
            )
    elif not (known.get("sasl_plain_username") and known.get("sasl_plain_password")):
        raise SettingsError(f"kafka.sasl.username and kafka.sasl.password: {mechanism} needs both. Set the missing one")


def _check_token(options: Options) -> None:
    """Refuse incomplete or unusable token options.

    Raises:
        SettingsError: an option is missing or has an unknown value.
    """
    if str(options.get("sasl.oauthbearer.method", "default")).lower() != "oidc":
        raise SettingsError(
            "kafka.sasl.oauthbearer.method: OAUTHBEARER needs a token server. Write oidc, with "
            "kafka.sasl.oauthbearer.token.endpoint.url, client.id and client.secret (docs/guide/security.md)"
        )
    for part in ("token.endpoint.url", "client.id", "client.secret"):
        if not options.get(f"sasl.oauthbearer.{part}"):
            raise SettingsError(f"kafka.sasl.oauthbearer.{part}: OAUTHBEARER needs this option. Set it")
    try:
        url = urlsplit(str(options["sasl.oauthbearer.token.endpoint.url"]))
        right = url.scheme in {"http", "https"} and url.hostname and not url.username and (url.port or 1)
    except ValueError:
        right = False
    if not right:
        raise SettingsError(
            "kafka.sasl.oauthbearer.token.endpoint.url: write the address of the token server as "
            "https://host[:port]/path, without a user"
        )
