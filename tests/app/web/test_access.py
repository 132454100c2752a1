"""Access to the page and to its changes: a real server, without a Kafka."""

from __future__ import annotations

import re
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from kafka_ratchet.app.settings import Settings, WebSettings
from kafka_ratchet.app.web import access as access_module
from kafka_ratchet.app.web.access import FREE_TRIES, WAIT_S, Failures, warning_of
from kafka_ratchet.app.web.server import WebServer
from kafka_ratchet.app.web.token import SESSION_S, Token, read_token
from kafka_ratchet.errors import SettingsError
from tests.app.worker.known_worker import settings_for

TOKEN = "0123456789abcdef-of-the-page"  # noqa: S105
HTML = {"Accept": "text/html"}
JSON = {"Accept": "application/json"}
BEARER = {"Authorization": f"Bearer {TOKEN}"}
PAGE = "/table"
"""A page that answers without Kafka: it says what is missing in the query."""


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(f"{TOKEN}\n")
    return path


@pytest.fixture
def settings(unused_tcp_port: int, token_file: Path) -> Callable[..., Settings]:
    def made(**page: Any) -> Settings:
        page.setdefault("token_file", str(token_file))
        return settings_for(f"127.0.0.1:{unused_tcp_port}").model_copy(update={"web": WebSettings(**page)})

    return made


@asynccontextmanager
async def served(settings: Settings) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    server = WebServer(str(settings.bootstrap), settings)
    url = await server.start()
    # Cookies of an address that is a number are left out otherwise.
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
        try:
            yield url, http
        finally:
            await server.stop()


async def log_in(url: str, http: aiohttp.ClientSession, token: str = TOKEN, **fields: str) -> aiohttp.ClientResponse:
    data = {"token": token, **fields}
    async with http.post(f"{url}/login", data=data, allow_redirects=False) as response:
        await response.read()
        return response


async def status(http: aiohttp.ClientSession, url: str, **options: Any) -> int:
    async with http.get(url, allow_redirects=False, **options) as response:
        return response.status


async def test_without_a_token_the_login_form_is_all_that_is_shown(settings: Callable[..., Settings]) -> None:
    async with served(settings()) as (url, http):
        async with http.get(f"{url}{PAGE}?table=a%26b", headers=HTML, allow_redirects=False) as response:
            assert response.status == 303
            assert response.headers["Location"] == "/login?next=%2Ftable%3Ftable%3Da%2526b"
        async with http.get(f"{url}/index.json") as response:
            assert response.status == 401
            assert response.headers["WWW-Authenticate"].startswith("Bearer")
            assert "needs its token" in (await response.json())["error"]
        async with http.get(f"{url}/tables", headers={**HTML, "HX-Request": "true"}) as response:
            assert (response.status, response.headers["HX-Redirect"]) == (401, "/login")
        for path in ("/nothing", "/static/../index.json", "/producers.json", "/logout"):
            assert await status(http, url + path) == 401, path
        for path in ("/login", "/static/ratchet.css"):
            assert await status(http, url + path) == 200, path
        async with http.post(f"{url}/logout") as response:
            assert response.status == 401


async def test_a_program_sends_the_token(settings: Callable[..., Settings]) -> None:
    async with served(settings()) as (url, http):
        for given, answer in (
            (f"Bearer {TOKEN}", 200),
            (f"bearer  {TOKEN}", 200),
            (f"Bearer {TOKEN}x", 401),
            (f"Basic {TOKEN}", 401),
            ("Bearer", 401),
            ("Bearer \xff", 401),
        ):
            async with http.get(url + PAGE, headers={**JSON, "Authorization": given}) as response:
                assert response.status == answer, given


async def test_a_browser_logs_in_and_out(settings: Callable[..., Settings]) -> None:
    async with served(settings()) as (url, http):
        refused = await log_in(url, http, "not the token at all")
        assert (refused.status, "Set-Cookie" in refused.headers) == (403, False)
        entered = await log_in(url, http, next="/table?table=a")
        assert (entered.status, entered.headers["Location"]) == (303, "/table?table=a")
        cookie = entered.headers["Set-Cookie"]
        assert TOKEN not in cookie
        for part in ("HttpOnly", "SameSite=Strict", f"Max-Age={SESSION_S}", "Path=/"):
            assert part in cookie
        assert "Secure" not in cookie
        assert await status(http, url + PAGE, headers=HTML) == 200
        async with http.post(f"{url}/logout", allow_redirects=False) as response:
            assert response.headers["Location"] == "/login"
        assert await status(http, url + PAGE, headers=HTML) == 303


@pytest.mark.parametrize("elsewhere", ["//evil.example", "/\\evil.example", "https://evil.example", "/a\nb", "", "/é"])
async def test_a_login_leads_to_this_page_alone(settings: Callable[..., Settings], elsewhere: str) -> None:
    async with served(settings()) as (url, http):
        assert (await log_in(url, http, next=elsewhere)).headers["Location"] == "/"


async def test_whoever_fails_often_waits_even_with_the_right_token(settings: Callable[..., Settings]) -> None:
    async with served(settings()) as (url, http):
        with capture_logs() as said:
            for _ in range(FREE_TRIES):
                assert (await log_in(url, http, "wrong" * 5)).status == 403
        assert len([line for line in said if "login refused" in line["event"]]) == FREE_TRIES
        assert "wrong" not in str(said)
        late = await log_in(url, http)
        assert late.status == 429
        assert 0 < int(late.headers["Retry-After"]) <= WAIT_S + 1
        assert await status(http, url + PAGE, headers={**JSON, **BEARER}) == 429


def test_failures_are_forgotten_after_a_while_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000.0]
    failures = Failures(lambda: now[0])
    for _ in range(FREE_TRIES):
        assert failures.wait_s("a") == 0
        failures.add("a")
    assert failures.wait_s("a") == WAIT_S
    assert failures.wait_s("b") == 0
    now[0] += WAIT_S
    assert failures.wait_s("a") == 0
    failures.add("a")
    assert failures.wait_s("a") == 0
    monkeypatch.setattr(access_module, "REMEMBERED", 2)
    for address in ("b", "c", "d"):
        failures.add(address)
    assert len(failures._known) == 2


def test_a_session_ends_and_is_of_one_token_and_application() -> None:
    now = [1_000_000.0]
    token = Token(TOKEN, "shop", lambda: now[0])
    session = token.new_session()
    assert token.has_session(session)
    assert TOKEN not in session
    expires, _, rest = session.partition(".")
    for other in ("", ".", "x", session[:-1], session + "0", f"{int(expires) + 9}.{rest}", "\ud800.a.b"):
        assert not token.has_session(other), other
    assert not Token(TOKEN, "till", lambda: now[0]).has_session(session)
    assert not Token(TOKEN + "x", "shop", lambda: now[0]).has_session(session)
    assert token.has_form_mark(session, token.form_mark(session))
    assert not token.has_form_mark(token.new_session(), token.form_mark(session))
    now[0] += SESSION_S
    assert not token.has_session(session)


@pytest.mark.parametrize(
    ("content", "mode", "sentence"),
    [
        ("", 0o600, "has no token: 16 to 1,024"),
        ("fifteen-letters", 0o600, "has no token"),
        ("two words of a token", 0o600, "has no token"),
        ("ümlaut-in-the-token", 0o600, "has no token"),
        ("x" * 1_025, 0o600, "has no token"),
        (TOKEN, 0o644, "chmod 600"),
        (TOKEN, 0o620, "chmod 600"),
    ],
)
def test_a_file_without_a_good_token_is_refused(tmp_path: Path, content: str, mode: int, sentence: str) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    path.chmod(mode)
    with pytest.raises(SettingsError, match=sentence) as refused:
        read_token(path, "shop")
    assert str(path) in str(refused.value)
    assert not content or content not in str(refused.value)


def test_a_token_that_a_group_may_read_is_taken_and_one_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o440)  # as Kubernetes gives a secret to a user of its own
    assert read_token(path, "shop").is_(TOKEN)
    with pytest.raises(SettingsError, match="cannot be read: No such file"):
        read_token(tmp_path / "none", "shop")


def certificate(folder: Path) -> tuple[Path, Path]:
    cert, key = folder / "page.pem", folder / "page.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", key, "-out", cert, "-subj", "/CN=page", "-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    return cert, key


async def test_https(settings: Callable[..., Settings], tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    trusted = ssl.create_default_context(cafile=str(cert))
    async with served(settings(tls_cert=str(cert), tls_key=str(key))) as (url, http):
        assert url.startswith("https://127.0.0.1:")
        data = {"token": TOKEN}
        async with http.post(f"{url}/login", data=data, ssl=trusted, allow_redirects=False) as response:
            assert "Secure" in response.headers["Set-Cookie"]
        assert await status(http, url + PAGE, ssl=trusted, headers=HTML) == 200
    for wrong in ({"tls_cert": str(cert)}, {"tls_cert": str(cert), "tls_key": str(tmp_path / "none")}):
        with pytest.raises(SettingsError, match=r"^web\.tls_cert and web\.tls_key: .*cannot be used"):
            await WebServer("127.0.0.1:1", settings(**wrong)).start()


async def test_a_proxys_user_may_read_and_only_the_proxy_is_believed(settings: Callable[..., Settings]) -> None:
    user = {"X-Forwarded-User": "ada", **JSON}
    proxied = {"trusted_proxy": "127.0.0.0/8", "user_header": "X-Forwarded-User"}
    async with served(settings(token_file=None, **proxied)) as (url, http):
        assert await status(http, url + PAGE, headers=user) == 200
        for hostile in ({}, {"X-Forwarded-User": ""}, {"X-Forwarded-User": "a" * 201}):
            assert await status(http, url + PAGE, headers={**JSON, **hostile}) == 403
        twice = [("X-Forwarded-User", "mallory"), ("X-Forwarded-User", "ada"), *JSON.items()]
        async with http.get(url + PAGE, headers=twice) as response:
            assert response.status == 403
            assert "through the proxy" in (await response.json())["error"]
    async with served(settings(token_file=None, **{**proxied, "trusted_proxy": "10.0.0.7"})) as (url, http):
        assert await status(http, url + PAGE, headers=user) == 403
    async with served(settings(**proxied)) as (url, http):
        encrypted = {**user, "X-Forwarded-Proto": "https"}
        async with http.post(
            f"{url}/login", data={"token": TOKEN}, headers=encrypted, allow_redirects=False
        ) as entered:
            assert "Secure" in entered.headers["Set-Cookie"]


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ({"write": True}, "Set token_file"),
        ({"tls_key": "k"}, "the certificate, is not set"),
        ({"trusted_proxy": ["10.0.0.7"]}, "Set both"),
        ({"user_header": "X-User"}, "Set both"),
        ({"trusted_proxy": ["10.0.0.7/8"], "user_header": "X-User"}, "host bits"),
        ({"trusted_proxy": "proxy.example", "user_header": "X-User"}, "write addresses"),
        ({"user_header": "X User"}, "pattern"),
    ],
)
def test_settings_that_mean_nothing_are_refused(page: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        WebSettings(**page)


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ({}, None),
        ({"host": "127.0.0.2"}, None),
        ({"host": "0.0.0.0"}, "everybody who reaches any address"),  # noqa: S104
        ({"host": "10.0.0.3"}, "everybody who reaches 10.0.0.3 may read"),
        ({"host": "10.0.0.3", "token_file": "t"}, "unencrypted"),
        ({"host": "10.0.0.3", "token_file": "t", "tls_cert": "c"}, None),
        ({"host": "10.0.0.3", "trusted_proxy": "10.0.0.7", "user_header": "X-User"}, None),
    ],
)
def test_a_page_that_others_reach_says_so_at_its_start(page: dict[str, Any], said: str | None) -> None:
    warning = warning_of(Settings(web=WebSettings(**page)))
    assert (warning is None) if said is None else (said in str(warning))


# What changes something. No Kafka answers, so each that is let through fails with a sentence, and is in the log.


def mark_of(html: str) -> str:
    found = re.search(r'name="form_mark" value="([0-9a-f]*)"', html)
    assert found
    return found[1]


async def post(http: aiohttp.ClientSession, url: str, origin: str | None, **fields: str) -> tuple[int, str]:
    headers = {"Accept": "application/json", **({} if origin is None else {"Origin": origin})}
    async with http.post(f"{url}/actions/policy", data=fields, headers=headers) as response:
        return response.status, await response.text()


FORM = {"stream": "nobody", "deduplicate": "off"}


async def test_nothing_is_changed_without_the_setting(settings: Callable[..., Settings]) -> None:
    for page in (settings(), settings(token_file=None)):
        async with served(page) as (url, http):
            async with http.post(f"{url}/actions/policy", data=FORM, headers=BEARER) as response:
                assert response.status == 405


async def test_a_form_needs_its_session_its_mark_and_its_origin(settings: Callable[..., Settings]) -> None:
    async with served(settings(write=True)) as (url, http):
        assert (await post(http, url, url, **FORM))[0] == 401
        entered = await log_in(url, http)
        session = entered.headers["Set-Cookie"].partition(";")[0].partition("=")[2]
        mark = Token(TOKEN, settings().app).form_mark(session)
        with capture_logs() as said:
            for origin, fields in (
                (None, {"form_mark": mark}),
                ("null", {"form_mark": mark}),
                ("http://evil.example", {"form_mark": mark}),
                (url + ".evil.example", {"form_mark": mark}),
                (url, {}),
                (url, {"form_mark": mark[:-1]}),
                (url, {"form_mark": Token(TOKEN, settings().app).form_mark("another")}),
            ):
                assert (await post(http, url, origin, **FORM, **fields))[0] == 403, (origin, fields)
        assert {line["outcome"] for line in said if line["event"] == "audit"} == {"refused"}
        with capture_logs() as said:
            answer, text = await post(http, url, url, **FORM, form_mark=mark)
        assert answer == 400
        assert "no stream 'nobody'" in text
        records = [line for line in said if line["event"] == "audit"]
        assert [line["outcome"] for line in records] == ["begun", "failed"]
        assert records[0]["by"] == "the token, from 127.0.0.1 by the page"
        assert (records[0]["asked_stream"], records[0]["asked_deduplicate"]) == ("nobody", "off")
        assert TOKEN not in str(said)
        assert mark not in str(said)


async def test_a_program_with_the_token_needs_no_mark(settings: Callable[..., Settings]) -> None:
    async with served(settings(write=True)) as (url, http):
        for path, fields, sentence in (
            ("policy", FORM, "no stream 'nobody'"),
            ("policy", {"stream": "", "deduplicate": "maybe"}, "Write on, off or unset"),
            ("policy", {"other": "x"}, "no field 'other'"),
            ("dead-letters", {"offset": "7"}, "but --partition is missing. Add --partition"),
            ("resume", {"execute": "1"}, "the field reason is empty. Write the reason"),
        ):
            async with http.post(f"{url}/actions/{path}", data=fields, headers={**BEARER, **JSON}) as response:
                assert response.status == 400
                assert sentence in (await response.json())["error"]
        async with http.post(f"{url}/actions/policy", data=[("stream", "a"), ("stream", "b")], headers=BEARER) as twice:
            assert twice.status == 400


async def test_a_user_of_the_proxy_writes_with_the_token_alone(settings: Callable[..., Settings]) -> None:
    page = settings(write=True, trusted_proxy="127.0.0.1", user_header="X-User")
    async with served(page) as (url, http):
        ada = {"X-User": "ada", **JSON}
        async with http.post(f"{url}/actions/policy", data=FORM, headers=ada) as response:
            assert response.status == 403
            assert "need its token" in (await response.json())["error"]
        with capture_logs() as said:
            async with http.post(f"{url}/actions/policy", data=FORM, headers={**ada, **BEARER}) as response:
                assert response.status == 400
        assert [line["by"] for line in said if line["event"] == "audit"] == ["ada, from 127.0.0.1 by the page"] * 2


async def test_what_is_typed_is_shown_as_text(settings: Callable[..., Settings]) -> None:
    hostile = '"><script>alert(1)</script>'
    async with served(settings(write=True)) as (url, http):
        async with http.get(f"{url}/login", params={"next": f"/{hostile}"}) as response:
            assert "<script>alert" not in await response.text()
        async with http.post(f"{url}/actions/policy", data={"stream": hostile}, headers={**BEARER, **HTML}) as response:
            assert response.status == 400
            assert "<script>alert" not in await response.text()


async def test_a_policy_that_is_set_by_the_page_says_who_did_it(
    settings: Callable[..., Settings], broker: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(partitions=1)
    page = settings_for(broker, topic).model_copy(update={"web": settings(write=True).web})
    (stream,) = page.streams
    async with served(page) as (url, http):
        await log_in(url, http)
        async with http.get(f"{url}/policy", headers=HTML) as response:
            mark = mark_of(await response.text())
        data = {"stream": stream, "deduplicate": "off", "form_mark": mark}
        with capture_logs() as said:
            async with http.post(f"{url}/actions/policy", data=data, headers={**HTML, "Origin": url}) as response:
                assert response.status == 200
                assert f"The policy of {stream} is off" in await response.text()
        assert [line["outcome"] for line in said if line["event"] == "audit"] == ["begun", "done"]
        async with http.get(f"{url}/policy", headers=JSON) as response:
            body = await response.json()
    (history,) = body["history"]
    assert history["by"] == "the token, from 127.0.0.1 by the page"
    assert body["streams"][0]["deduplicate"] is False
