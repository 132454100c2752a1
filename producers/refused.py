# ruff: noqa: SLF001  (librdkafka's local error codes begin with an underscore, and are public)
"""Why Kafka does not let a client in, or a client does not trust Kafka: what trying again does not help against."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from confluent_kafka import KafkaError

from kafka_ratchet.errors import KafkaRefused
from kafka_ratchet.producers.tls import Options, look_at_certificate

_WHERE: Final = re.compile(
    r"^\w+://(?P<server>[^/\s]+:\d+)/\S+: (?P<what>.*?)(?: \(after \d+ms in state .*)?$", re.DOTALL
)
_TOKEN: Final = "Failed to acquire SASL OAUTHBEARER token: "  # noqa: S105 - librdkafka's words
_AWAY: Final = re.compile(r"connect|resolve|timed? ?out|empty reply|HTTP[^{]* 5\d\d", re.IGNORECASE)
"""In what librdkafka says of a token server: it may answer later."""
_ALERT: Final = re.compile(r"alert (?P<alert>[a-z ]+?)(?:: SSL alert number \d+)?$")


class Heard:
    """An `error_cb` that keeps the last error by which a client of these options was refused."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._last: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        """Keep it, if it is a refusal."""
        if _is_refusal(error):
            self._last = error

    def refusal(self) -> KafkaRefused | None:
        """What to raise; None: nothing that trying again does not help against."""
        last, self._last = self._last, None  # only what was heard since it was asked last
        sentence = None if last is None else refused(last, self._options)
        return None if sentence is None else KafkaRefused(sentence)


def refused(error: KafkaError, options: Options) -> str | None:
    """One sentence: what was refused, by which server, and what to do. None: it is no refusal, or may pass.

    Args:
        error: as librdkafka gives it to `error_cb`.
        options: of the client; may lead to a look at the server's certificate, for some seconds.
    """
    if not _is_refusal(error):
        return None
    text: str = error.str()
    if text.startswith(_TOKEN):
        return token_refused(options, text.removeprefix(_TOKEN))
    found = _WHERE.match(text)
    server, what = (found["server"], found["what"]) if found else ("", text)
    at = f"Kafka at {server}" if server else "Kafka"
    if error.code() == KafkaError._AUTHENTICATION:
        mechanism = options.get("sasl.mechanism", options.get("sasl.mechanisms"))
        return login_refused(at, what.removeprefix("SASL authentication error: "), mechanism)
    if alert := _ALERT.search(what):
        return own_certificate_refused(at, alert["alert"])
    if "certificate verify failed" not in what:
        return f"TLS with {at} failed: {what}. Correct bootstrap, kafka.security.protocol and kafka.ssl.*"
    return look_at_certificate(server, options) or (
        f"the certificate of {at} is refused: it could not be verified. Give kafka.ssl.ca.location the CA that "
        "signed it"
    )


def login_refused(at: str, what: str, mechanism: object) -> str:
    """The sentence for a login that a server refuses. at: "Kafka at host:port"; what: Kafka's words."""
    mechanism = str(mechanism or "PLAIN").upper()
    begin = f"{at} refuses the login by {mechanism}: {what.strip().rstrip('.')}"
    if "SASL state" in what:
        return f"{begin}. This address takes no login: correct bootstrap, or kafka.security.protocol"
    if "mechanism" in what and ("nsupported" in what or "does not support" in what):
        return f"{begin}. Write one that it takes in kafka.sasl.mechanism"
    if mechanism == "OAUTHBEARER":
        return f"{begin}. Its token has expired, or is not for this Kafka: look at kafka.sasl.oauthbearer.*"
    return f"{begin}. Correct kafka.sasl.username and kafka.sasl.password (RATCHET_KAFKA__SASL__PASSWORD)"


def own_certificate_refused(at: str, alert: str) -> str:
    """The sentence for a client's certificate, or the lack of one, that a server refuses. alert: in TLS's words."""
    return (
        f"{at} refuses this client's certificate, or that it has none (alert {alert}). Give "
        "kafka.ssl.certificate.location and kafka.ssl.key.location one "
        "that is valid and signed by a CA that the broker trusts"
    )


def token_refused(options: Mapping[str, object], what: str) -> str | None:
    """The sentence for a token that the token server does not give; None: it may give it later."""
    if _AWAY.search(what):
        return None
    return (
        f"{token_server(options)} gives no token: {what.strip().rstrip('.')}. Correct kafka.sasl.oauthbearer.client.id "
        "and kafka.sasl.oauthbearer.client.secret (RATCHET_KAFKA__SASL__OAUTHBEARER__CLIENT__SECRET)"
    )


def token_server(options: Mapping[str, object]) -> str:
    """The token server by its address, without what else may stand in its url."""
    try:
        url = urlsplit(str(options.get("sasl.oauthbearer.token.endpoint.url", "")))
        return f"the token server {url.hostname}" + (f":{url.port}" if url.port else "")
    except ValueError:
        return "the token server"


def _is_refusal(error: KafkaError) -> bool:
    if error.code() in (KafkaError._SSL, KafkaError._AUTHENTICATION):
        return True
    return error.code() == KafkaError._TRANSPORT and (
        "SSL alert number" in error.str() or "certificate verify failed" in error.str()
    )
