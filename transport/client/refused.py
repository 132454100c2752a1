"""Reasons of refused aiokafka connections, in the error texts of the other clients."""

from __future__ import annotations

import ssl

from aiokafka import errors as kafka

from kafka_ratchet.producers import certificate_refused, login_refused, own_certificate_refused


class AccessRefused(kafka.KafkaConnectionError):  # type: ignore[misc]  # aiokafka has no types
    """Error for a refused connection. The text names the side that refuses, the reason and the remedy."""


class TokenRefused(kafka.KafkaError):  # type: ignore[misc]  # aiokafka has no types
    """Error for a login token that the token server does not give; the text gives the reason."""


def refusal(server: str, error: BaseException, mechanism: str | None) -> str | None:
    """Return the message for a refused connection, with server and remedy.

    None if the error is not a refusal, or may be temporary.

    Args:
        server: host:port
        error: error that ended the connection before its use
        mechanism: SASL mechanism of the login
    """
    at = f"Kafka at {server}"
    if isinstance(error, TokenRefused):
        return str(error.args[0])
    if isinstance(error, ssl.SSLCertVerificationError):
        return certificate_refused(server, error)
    if isinstance(error, kafka.IllegalSaslStateError):
        return login_refused(at, "not valid in this SASL state", mechanism)
    if isinstance(error, kafka.UnsupportedSaslMechanismError):
        return login_refused(at, "unsupported mechanism", mechanism)
    if isinstance(error, kafka.SaslAuthenticationFailed):
        return login_refused(at, str(error.args[0]) if error.args else "authentication failed", mechanism)
    # Under TLS 1.3 a server answers to a client's certificate after the client has begun to talk.
    reason = error if isinstance(error, ssl.SSLError) else error.__cause__
    if not isinstance(reason, ssl.SSLError) or not reason.reason:
        return None
    if "_ALERT_" in reason.reason:
        return own_certificate_refused(at, reason.reason.partition("_ALERT_")[2].replace("_", " ").lower())
    return f"TLS with {at} failed: {reason.reason}. Correct bootstrap, kafka.security.protocol and kafka.ssl.*"
