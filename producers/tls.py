"""TLS by Python's ssl module, from client options with librdkafka's names."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping

from kafka_ratchet.errors import SettingsError

Options = Mapping[str, str | int | bool]

LOOK_S = 3.0
"""Seconds to wait for a server's certificate."""

NOT_SIGNED = frozenset({2, 18, 19, 20, 21})
EXPIRED, NOT_YET_VALID = 10, 9
OTHER_HOST = frozenset({62, 64})
"""OpenSSL's error numbers for a certificate of another host (X509_V_ERR_...)."""


def tls_context(options: Options) -> ssl.SSLContext:
    """Return the TLS context for a client with these options.

    Raises:
        SettingsError: a certificate or key cannot be read.
    """
    try:
        context = ssl.create_default_context(cafile=_text(options, "ssl.ca.location"))
        if certificate := _text(options, "ssl.certificate.location"):
            context.load_cert_chain(certificate, _text(options, "ssl.key.location"), _text(options, "ssl.key.password"))
    except OSError as error:
        raise SettingsError(
            f"kafka.ssl.*: a certificate or key cannot be read: {error}. Correct the paths and the password in these "
            "settings"
        ) from None
    if str(options.get("ssl.endpoint.identification.algorithm", "https")).lower() == "none":
        context.check_hostname = False
    if str(options.get("enable.ssl.certificate.verification", "true")).lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def certificate_refused(server: str, error: ssl.SSLCertVerificationError) -> str:
    """Return the error text for a server's certificate that this client refuses.

    Args:
        server: host:port of the server.
        error: error of Python's ssl module.
    """
    begin = f"the certificate of Kafka at {server} is refused"
    if error.verify_code in NOT_SIGNED:
        return (
            f"{begin}: it is not signed by a CA that this client knows ({error.verify_message}). Give "
            "kafka.ssl.ca.location the CA that signed it, or correct bootstrap"
        )
    if error.verify_code in OTHER_HOST:
        return (
            f"{begin}: it is made out for other host names ({error.verify_message.rstrip('.')}). Use one of these "
            "names in bootstrap, or give the broker a certificate with the name used now (which may also come from "
            "its advertised.listeners)"
        )
    if error.verify_code == EXPIRED:
        return f"{begin}: it has expired. Renew it on the broker, or set this machine's clock"
    if error.verify_code == NOT_YET_VALID:
        return (
            f"{begin}: it is not valid yet. Set this machine's clock, or that of the machine that made the certificate"
        )
    return f"{begin} ({error.verify_message}). Renew it on the broker"


def look_at_certificate(server: str, options: Options) -> str | None:
    """Return an error text about the fault of a server's certificate; None: no fault, or no readable certificate.

    librdkafka has the same message for all faults, so this function makes a connection of its own.
    """
    host, _, port = server.rpartition(":")
    host = host.strip("[]")
    if options.get("ssl.ca.pem"):
        return None
    try:
        context = tls_context(options)
        with socket.create_connection((host, int(port)), LOOK_S) as plain:
            plain.settimeout(LOOK_S)
            with context.wrap_socket(plain, server_hostname=host):
                return None
    except ssl.SSLCertVerificationError as error:
        return certificate_refused(server, error)
    except (OSError, ValueError, SettingsError):
        return None


def _text(options: Options, name: str) -> str | None:
    return str(options[name]) if options.get(name) else None
