"""Tokens for SASL/OAUTHBEARER, fetched from an OpenID server for the Python clients.

Every Python client of a process uses this module. librdkafka and Java's client fetch their own tokens, with the same
options.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import ssl
import threading
import time
from typing import Any, Final, NoReturn
from urllib.parse import urlencode, urlsplit

from aiokafka import errors as kafka
from aiokafka.abc import AbstractTokenProvider

from kafka_ratchet.producers import token_server
from kafka_ratchet.producers.tls import Options
from kafka_ratchet.transport.client.refused import TokenRefused

ASK_S: Final = 10.0
ANSWER_MOST: Final = 64 * 1024
"""Maximum bytes of a token server's answer."""
RENEW_AT: Final = 0.8
"""Share of a token's life after which the next connection fetches another, as librdkafka does."""


class Tokens(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    """Provider of unexpired login tokens, for any event loop and thread.

    Args:
        options: `sasl.oauthbearer.*` of the settings' `kafka` section
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._token, self._until = "", float("-inf")

    async def token(self) -> str:
        """Return the token to log in with.

        Raises:
            TokenRefused: the token server refuses this client.
            aiokafka.errors.KafkaConnectionError: the token server does not answer.
        """
        return await asyncio.get_running_loop().run_in_executor(None, self._current)

    def _current(self) -> str:
        with self._lock:
            now = time.monotonic()
            if now >= self._until:
                self._token, seconds = fetch_token(self._options)
                self._until = now + seconds * RENEW_AT
            return self._token


def fetch_token(options: Options) -> tuple[str, float]:
    """Request a token from the token server; returns (token, seconds until it expires).

    Raises:
        TokenRefused: the token server refuses this client.
        aiokafka.errors.KafkaConnectionError: the token server does not answer.
    """
    server = token_server(options)
    form = {"grant_type": "client_credentials", "scope": str(options.get("sasl.oauthbearer.scope", ""))}
    # As librdkafka and Java's client write them: not form-encoded before (RFC 6749, 2.3.1).
    who = ":".join(str(options[f"sasl.oauthbearer.client.{part}"]) for part in ("id", "secret"))
    headers = {
        "Authorization": f"Basic {base64.b64encode(who.encode()).decode()}",
        "Content-Type": "application/x-www-form-urlencoded",
        "Accept": "application/json",
    }
    try:
        status, body = _post(options, urlencode({name: value for name, value in form.items() if value}), headers)
    except ssl.SSLCertVerificationError as error:
        raise TokenRefused(
            f"the certificate of {server} is refused ({error.verify_message}). If this machine does not "
            "know the certificate's CA, set kafka.https.ca.location to the file of that CA. If the certificate names "
            "another host, correct kafka.sasl.oauthbearer.token.endpoint.url. If it has expired, renew it on the server"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise kafka.KafkaConnectionError(f"{server} does not answer: {error}") from None
    if status >= 500:
        raise kafka.KafkaConnectionError(f"{server} answers with status {status}")
    return _token_of(status, body, server)


def _post(options: Options, body: str, headers: dict[str, str]) -> tuple[int, bytes]:
    """Post a request without following a redirect, because the secret is meant for this server only."""
    url = urlsplit(str(options["sasl.oauthbearer.token.endpoint.url"]))
    connection: http.client.HTTPConnection
    if url.scheme == "https":
        context = ssl.create_default_context(cafile=str(options.get("https.ca.location") or "") or None)
        connection = http.client.HTTPSConnection(url.hostname or "", url.port, timeout=ASK_S, context=context)
    else:
        connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=ASK_S)
    try:
        connection.request("POST", (url.path or "/") + (f"?{url.query}" if url.query else ""), body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read(ANSWER_MOST)
    finally:
        connection.close()


def _token_of(status: int, body: bytes, server: str) -> tuple[str, float]:
    def refuse(why: str) -> NoReturn:
        raise TokenRefused(
            f"{server} gives no token: {why}. Correct kafka.sasl.oauthbearer.client.id and "
            "kafka.sasl.oauthbearer.client.secret (RATCHET_KAFKA__SASL__OAUTHBEARER__CLIENT__SECRET)"
        )

    try:
        answer: Any = json.loads(body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        refuse(f"status {status}, and no JSON object")
    token = answer.get("access_token")
    if status != 200 or not isinstance(token, str) or not token.isascii() or not token:
        refuse(f"status {status}, {str(answer.get('error', 'no access_token'))[:100]}")
    seconds = answer.get("expires_in")
    return token, float(seconds) if isinstance(seconds, int | float) and not isinstance(seconds, bool) else 60.0
