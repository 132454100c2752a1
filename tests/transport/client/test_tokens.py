"""Tokens from a server that gives them, that gives none, and that is not there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from aiokafka.errors import KafkaConnectionError

from kafka_ratchet.app.local.ports import free_port
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.transport.client.refused import TokenRefused
from kafka_ratchet.transport.client.security import client_options
from kafka_ratchet.transport.client.tokens import Tokens
from tests.token_server import CLIENT, SECRET, TokenServer


@pytest.fixture
def server() -> Iterator[TokenServer]:
    with TokenServer() as started:
        yield started


def options(url: str, secret: str = SECRET) -> dict[str, str | int | bool]:
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": url,
        "sasl.oauthbearer.client.id": CLIENT,
        "sasl.oauthbearer.client.secret": secret,
        "sasl.oauthbearer.scope": "kafka",
    }


async def test_a_token_is_fetched_once_and_again_when_it_ends(server: TokenServer) -> None:
    tokens = client_options("a:1", options(f"{server.url}/token"))["sasl_oauth_token_provider"]
    assert await tokens.token() == await tokens.token()
    assert server.asked == 1
    server.lasts_s = 0
    tokens = Tokens(options(f"{server.url}/token"))
    await tokens.token()
    await tokens.token()
    assert server.asked == 3


async def test_a_server_that_gives_none_is_named(server: TokenServer) -> None:
    with pytest.raises(TokenRefused, match=r"server 127.0.0.1:\d+ gives no token: status 401, invalid_client"):
        await Tokens(options(f"{server.url}/token", "another secret")).token()


async def test_a_server_that_is_not_there_may_come_back() -> None:
    with pytest.raises(KafkaConnectionError, match="does not answer"):
        await Tokens(options(f"http://127.0.0.1:{free_port()}/token")).token()


@pytest.mark.parametrize(
    "url", ["ftp://a/b", "https://user:secret@a/b", "https://", "https://a:x/b", "file:///etc/token"]
)
def test_an_address_that_is_none_is_refused_without_being_quoted(url: str) -> None:
    with pytest.raises(SettingsError, match=r"^kafka\.sasl\.oauthbearer\.token\.endpoint\.url: write") as caught:
        client_options("a:1", options(url))
    assert "secret" not in str(caught.value)
