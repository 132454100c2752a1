"""Kafka client options, given once in librdkafka's names, in the words of aiokafka."""

from __future__ import annotations

import importlib.util
import ssl
from collections.abc import Mapping
from typing import Any

from kafka_ratchet.errors import SettingsError

Options = Mapping[str, str | int | bool]

_DIRECT = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "sasl.kerberos.service.name": "sasl_kerberos_service_name",
    "client.id": "client_id",
}
_SSL = {
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "enable.ssl.certificate.verification",
}
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI")
"""aiokafka has OAUTHBEARER too, but needs code of the user's own for it."""
_SECURITY = ("security.", "sasl.", "ssl.", "enable.ssl.")
"""Options of these families decide who may read what: one that is not understood is refused, not ignored."""


def client_options(bootstrap: str, options: Options) -> dict[str, Any]:
    """Keyword arguments for aiokafka clients (AIOKafkaClient, AIOKafkaAdminClient, AIOKafkaConsumer).

    Args:
        bootstrap: host:port[,host:port]
        options: as in the settings' `kafka` section; those that are not about security or the client id and that only
            librdkafka knows are left to the librdkafka clients

    Raises:
        SettingsError: a security option that aiokafka has no counterpart for or cannot use as it is, or a certificate
            that cannot be read.
    """
    known: dict[str, Any] = {"bootstrap_servers": bootstrap.split(",")}
    for name, value in options.items():
        if name in _DIRECT:
            known[_DIRECT[name]] = (
                str(value).upper() if name.startswith(("security.", "sasl.mechanism")) else str(value)
            )
        elif name.startswith(_SECURITY) and name not in _SSL:
            raise SettingsError(
                f"kafka.{name}: the worker has no counterpart for this option. It understands "
                f"{', '.join(sorted({*_DIRECT, *_SSL}))}"
            )
    _check_login(known)
    if known.get("security_protocol") in {"SSL", "SASL_SSL"}:
        known["ssl_context"] = _ssl_context(options)
    return known


def _check_login(known: Mapping[str, Any]) -> None:
    """Refuse what aiokafka would end on, with an error of its own that names none of our options."""
    protocol, mechanism = known.get("security_protocol", "PLAINTEXT"), known.get("sasl_mechanism", "PLAIN")
    for option, given, words in (
        ("security.protocol", protocol, PROTOCOLS),
        ("sasl.mechanism", mechanism, MECHANISMS if protocol.startswith("SASL") else (mechanism,)),
    ):
        if given not in words:
            raise SettingsError(f"kafka.{option}: the worker cannot use the given one. Write one of {', '.join(words)}")
    if not protocol.startswith("SASL"):
        return
    if mechanism == "GSSAPI":
        if importlib.util.find_spec("gssapi") is None:
            raise SettingsError("kafka.sasl.mechanism: GSSAPI needs the Python package gssapi, which is not installed")
    elif not (known.get("sasl_plain_username") and known.get("sasl_plain_password")):
        raise SettingsError(f"kafka.sasl.username and kafka.sasl.password: {mechanism} needs both")


def _ssl_context(options: Options) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=_text(options, "ssl.ca.location"))
        if certificate := _text(options, "ssl.certificate.location"):
            context.load_cert_chain(certificate, _text(options, "ssl.key.location"), _text(options, "ssl.key.password"))
    except OSError as error:
        raise SettingsError(f"kafka.ssl.*: a certificate or key cannot be read: {error}") from None
    if str(options.get("ssl.endpoint.identification.algorithm", "https")).lower() == "none":
        context.check_hostname = False
    if str(options.get("enable.ssl.certificate.verification", "true")).lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _text(options: Options, name: str) -> str | None:
    return str(options[name]) if options.get(name) else None
