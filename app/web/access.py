"""Access to the page: who may read it, and who may make changes through it.

If the settings have a token or a trusted proxy, the page answers a request only if the request has one of these:

    Authorization: Bearer TOKEN      sent by programs.
    the cookie of a session          sent by browsers, after the login form.
    the user header of the proxy     accepted from the proxy's addresses alone.

If the settings have neither, the page answers every request. A change needs `web.write` and the token, by bearer header
or session; a user of the proxy who has not logged in may only read. A form in a session contains a mark derived from
the session, and the Origin header of the POST must have this page's address. A request with a bearer header needs no
mark and no Origin, because browsers never send that header on their own.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast
from urllib.parse import quote, urlsplit

import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.http import LOOPBACK_NAMES, Handler, Refusal, is_wildcard
from kafka_ratchet.app.web.token import SESSION_S, Token, read_token

log = structlog.get_logger(__name__)

LOGIN: Final = "/login"
LOGOUT: Final = "/logout"
STATIC: Final = "/static/"
FORM_MARK: Final = "form_mark"
"""Name of the form field with the form's mark."""

FREE_TRIES: Final = 5
WAIT_S: Final = 60.0
"""Seconds that an address with too many failed logins must wait after the last one."""
REMEMBERED: Final = 4_096
"""Maximum number of addresses with remembered failures; the oldest address is forgotten first.

It is safe to forget an address, because the token is too long to guess.
"""
NAME_MOST: Final = 200


@dataclass(frozen=True, slots=True)
class Caller:
    """Caller of a request.

    Attributes:
        name: name for the audit record
        has_token: True if the request came with the token, by bearer header or session
        session: value of the session cookie; None: no valid session
    """

    name: str = "anybody"
    has_token: bool = False
    session: str | None = None


CALLER: Final = web.RequestKey("caller", Caller)


class Failures:
    """Counter of failed logins by address, which slows down an address that tries many tokens."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, tuple[int, float]] = {}

    def add(self, address: str) -> None:
        """Count one more failed login of an address."""
        count, at = self._known.pop(address, (0, 0.0))
        is_recent = self._clock() - at < WAIT_S
        self._known[address] = (count + 1 if is_recent else 1, self._clock())
        if len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]

    def wait_s(self, address: str) -> float:
        """Return the seconds until an address may try to log in again; 0: at once."""
        count, at = self._known.get(address, (0, 0.0))
        return max(0.0, at + WAIT_S - self._clock()) if count >= FREE_TRIES else 0.0


class AccessRules:
    """Access rules of the page, as the settings have them.

    Raises:
        SettingsError: the file with the token cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        page = settings.web
        self.token: Token | None = read_token(Path(page.token_file), settings.app) if page.token_file else None
        self.failures = Failures()
        self._networks = [ipaddress.ip_network(each) for each in page.trusted_proxy]
        self._user_header = page.user_header
        self._write = page.write
        self._has_tls = page.tls_cert is not None

    @property
    def is_open(self) -> bool:
        """Return True if the page answers every request, because the settings have neither a token nor a proxy."""
        return self.token is None and not self._networks

    @property
    def posts(self) -> frozenset[str]:
        """Return the paths for login and logout, which accept POST; none without a token."""
        return frozenset() if self.token is None else frozenset({LOGIN, LOGOUT})

    def caller(self, request: web.Request) -> Caller | None:
        """Return the caller of a request; None if the caller may not see the page.

        A wrong bearer token counts as a failed login.

        Raises:
            TooManyFailures: the caller's address must wait after too many failed logins, even with the right token.
        """
        user = self._user(request)
        session = self._session(request)
        has_token = session is not None or self._has_bearer(request)
        if user is None and not has_token and not self.is_open:
            return None
        return Caller(user or ("the token" if has_token else "anybody"), has_token, session)

    def may_write(self, caller: Caller) -> bool:
        """Return True if this caller may make changes through the page."""
        return self._write and caller.has_token

    def is_token(self, request: web.Request, given: str) -> bool:
        """Return True if `given` is the page's token; count and log a wrong one.

        Raises:
            TooManyFailures: see `caller`.
        """
        address = peer(request)
        if self.token is None:
            return False
        if wait_s := self.failures.wait_s(address):
            raise TooManyFailures(wait_s)
        if self.token.is_(given):
            return True
        self.failures.add(address)
        log.warning("login refused: this is not the token of the page", address=address)
        return False

    def is_secure(self, request: web.Request) -> bool:
        """Return True if the browser's connection uses TLS, to this page or to a trusted proxy."""
        forwarded = self._is_proxy(request) and request.headers.get("X-Forwarded-Proto", "").lower() == "https"
        return self._has_tls or forwarded

    def start_session(self, request: web.Request, response: web.StreamResponse) -> None:
        """Set the cookie of a new session in a response. Call it only after `is_token` has returned True."""
        token = cast("Token", self.token)
        response.set_cookie(
            token.cookie,
            token.new_session(),
            max_age=SESSION_S,
            path="/",
            httponly=True,
            samesite="Strict",
            secure=self.is_secure(request),
        )

    def end_session(self, request: web.Request, response: web.StreamResponse) -> None:
        """Make a response delete the session's cookie in the browser."""
        token = cast("Token", self.token)
        response.del_cookie(token.cookie, path="/", httponly=True, samesite="Strict", secure=self.is_secure(request))

    def form_mark(self, caller: Caller) -> str:
        """Return the mark for this caller's forms; "" for a caller without a session."""
        return "" if self.token is None or caller.session is None else self.token.form_mark(caller.session)

    def why_not(self, request: web.Request, mark: str) -> str | None:
        """Return the reason to refuse a posted form; None to accept it.

        A form is accepted if it was made for the caller's session, or if the caller has no session (bearer header).

        Args:
            request: POST request.
            mark: mark in the form.
        """
        caller = caller_of(request)
        if caller.session is None:
            return None  # by bearer: no browser sends that for another site
        origin = urlsplit(request.headers.get("Origin", ""))
        if origin.scheme not in {"http", "https"} or origin.netloc.lower() != request.host.lower():
            return (
                "the header Origin of this form is not the address of this page. A proxy in front of the page has to "
                "leave the headers Host and Origin as they are"
            )
        if self.token is None or not self.token.has_form_mark(caller.session, mark):
            return "this form was made for another session. Load its page again"
        return None

    def _session(self, request: web.Request) -> str | None:
        value = None if self.token is None else request.cookies.get(self.token.cookie)
        return value if value is not None and self.token is not None and self.token.has_session(value) else None

    def _has_bearer(self, request: web.Request) -> bool:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        return scheme.lower() == "bearer" and self.is_token(request, given.strip())

    def _user(self, request: web.Request) -> str | None:
        if self._user_header is None or not self._is_proxy(request):
            return None
        names = request.headers.getall(self._user_header, [])
        # Two of them: the proxy has added its own to one that came from outside.
        is_name = len(names) == 1 and 0 < len(names[0]) <= NAME_MOST and names[0].isprintable()
        return names[0] if is_name else None

    def _is_proxy(self, request: web.Request) -> bool:
        try:
            address = ipaddress.ip_address(peer(request))
        except ValueError:
            return False
        return any(address in network for network in self._networks)


class TooManyFailures(Exception):
    """Refusal of a request from an address that must wait after too many failed logins."""

    def __init__(self, wait_s: float) -> None:
        self.wait_s = int(wait_s) + 1
        super().__init__(f"too many logins from this address have failed. Try again in {self.wait_s} s")


ACCESS = web.AppKey("access", AccessRules)


def peer(request: web.Request) -> str:
    """Return the address at the other end of the connection; headers such as X-Forwarded-For are ignored.

    An IPv4 address mapped into IPv6 is returned as IPv4.
    """
    name = None if request.transport is None else request.transport.get_extra_info("peername")
    if not name:
        return "unknown"
    address = str(name[0])
    return address.removeprefix("::ffff:") if "." in address else address


def caller_of(request: web.Request) -> Caller:
    """Return the caller that `guard` has stored in a request."""
    return request[CALLER] if CALLER in request else Caller()


@dataclass(frozen=True, slots=True)
class AccessView:
    """Access of a request's caller, for templates.

    Attributes:
        session: True if the browser is logged in
        may_write: True to show forms for changes
        form_mark: value of the field `FORM_MARK` in these forms
    """

    session: bool
    may_write: bool
    form_mark: str


def access_view(request: web.Request) -> AccessView:
    """Return the access of a request's caller, for the template of the answer."""
    access, caller = request.app[ACCESS], caller_of(request)
    return AccessView(caller.session is not None, access.may_write(caller), access.form_mark(caller))


def guard(access: AccessRules, refusal: Refusal) -> Middleware:
    """Return the middleware that refuses requests without access; it redirects browsers to the login form.

    Args:
        access: access rules of the settings.
        refusal: function that makes the answer to a refused request.
    """

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            caller = access.caller(request)
            if caller is not None:
                request[CALLER] = caller
            elif not request.path.startswith(STATIC) and request.path != LOGIN:
                return _ask_for_login(request, access, refusal)
            return await handler(request)
        except TooManyFailures as error:
            response = refusal(request, 429, str(error))
            response.headers["Retry-After"] = str(error.wait_s)
            return response

    return guarded


def _ask_for_login(request: web.Request, access: AccessRules, refusal: Refusal) -> web.StreamResponse:
    if access.token is None:
        return refusal(request, 403, "this page is for users whom its proxy has let in. Open it through the proxy")
    wants_html = "text/html" in request.headers.get("Accept", "") and not request.path.endswith(".json")
    if wants_html and request.method in {"GET", "HEAD"} and "HX-Request" not in request.headers:
        return web.Response(status=303, headers={"Location": f"{LOGIN}?next={quote(request.raw_path, safe='')}"})
    response = refusal(request, 401, "this page needs its token: log in, or send Authorization: Bearer TOKEN")
    response.headers["WWW-Authenticate"] = 'Bearer realm="ratchet"'
    if "HX-Request" in request.headers:  # htmx loads the form in the place of the whole page
        response.headers["HX-Redirect"] = LOGIN
    return response


def warning_of(settings: Settings) -> str | None:
    """Return a warning if the settings let strangers read the page or its token; None if they do not."""
    page = settings.web
    is_here = page.host in LOOPBACK_NAMES or page.host.startswith("127.")
    if page.token_file is not None or page.trusted_proxy:
        if page.tls_cert is None and not page.trusted_proxy and not is_here:
            return (
                "the page's token and sessions cross the network unencrypted: set web.tls_cert, or put a proxy with "
                "TLS in front"
            )
        return None
    if is_here:
        return None
    where = "any address of this machine" if is_wildcard(page.host) else page.host
    return f"everybody who reaches {where} may read this page: set web.token_file, or web.host to 127.0.0.1"
