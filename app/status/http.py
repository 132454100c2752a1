"""Checks of each request to an HTTP address of Ratchet: a method that only reads, a known host, strict headers.

Any web page can make a browser send requests to loopback addresses. The check of the Host header keeps a page
from reading the answers through a host name of its own that resolves to this address (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection, Iterable

import msgspec
import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from kafka_ratchet.app.status.lookup import QueryError

log = structlog.get_logger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Refusal = Callable[[web.Request, int, str], web.Response]

HEADERS = {
    "Content-Security-Policy": (
        # data: for the icons in Pico's style sheet; an image runs nothing.
        "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
        "object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Headers of every answer, errors included. They forbid inline scripts and styles, which no page needs."""

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def is_wildcard(host: str) -> bool:
    """Return True if a server bound to this host listens on all addresses."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return host == ""


def reachable_host(host: str) -> str:
    """Return the host name for requests from other machines to a server bound to `host`.

    It is `host` itself, or this machine's name if `host` is a wildcard.
    """
    return socket.gethostname() if is_wildcard(host) else host


def url_of(host: str, port: int, scheme: str = "http") -> str:
    """Return `http://host:port`, with brackets around an IPv6 address."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class CannotBind(Exception):
    """Error raised if host and port cannot be bound; the text is the system's reason."""


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket that processes forked later inherit.

    port: 0 takes a free port.

    Raises:
        CannotBind: the system refuses the address.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.create_server(address[:2], family=family, backlog=128)
    except (OSError, ValueError) as error:
        raise CannotBind(getattr(error, "strerror", None) or error) from None
    listening.setblocking(False)
    return listening


async def bind(
    runner: web.AppRunner,
    host: str,
    port: int,
    shown: str,
    tls: ssl.SSLContext | None = None,
    listening: socket.socket | None = None,
) -> str:
    """Start a server, and return its address.

    Args:
        runner: runner before its `setup`; after a failure, this function cleans it up.
        host: host to bind.
        port: port to bind; 0 takes a free port.
        shown: host to put into the returned address.
        tls: TLS context, for HTTPS only; None: HTTP.
        listening: socket to serve on, already bound; host and port are then ignored. None: bind host and port.

    Raises:
        CannotBind: the system refuses the address.
    """
    await runner.setup()
    try:
        if listening is None:
            await web.TCPSite(runner, host, port, ssl_context=tls).start()
        else:
            await web.SockSite(runner, listening, ssl_context=tls).start()
    except (OSError, ValueError) as error:  # ValueError: no host name can be that
        await runner.cleanup()
        raise CannotBind(getattr(error, "strerror", None) or error) from None
    return url_of(shown, int(runner.addresses[0][1]), "http" if tls is None else "https")


def request_checks(
    hosts: Iterable[str], refusal: Refusal, posts: Collection[str] = (), under_any: frozenset[str] = frozenset()
) -> Middleware:
    """Return the outermost middleware, which checks each request and sets the headers of each answer.

    Args:
        hosts: names allowed in the Host header in addition to the loopback ones.
        refusal: function that makes the answer to a refused request, from status code and sentence.
        posts: paths that accept POST; their handlers check who may send it.
        under_any: paths that accept any Host header, for probes and Prometheus.
    """
    allowed = LOOPBACK_NAMES | {host.lower() for host in hosts if host}

    @web.middleware
    async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
        is_known = request.path in under_any or _host_name(request.host) in allowed
        response = await _answer(request, handler, refusal, posts, is_known=is_known)
        response.headers.update(HEADERS)
        # Vendored files carry their version in the path, our own change with the installed package: ask, then reuse.
        response.headers["Cache-Control"] = "no-cache" if request.path.startswith("/static/") else "no-store"
        return response

    return checked


async def _answer(
    request: web.Request, handler: Handler, refusal: Refusal, posts: Collection[str], *, is_known: bool
) -> web.StreamResponse:
    if not is_known:
        return refusal(request, 421, "this address does not answer under that host name")
    if request.method not in {"GET", "HEAD"} and not (request.method == "POST" and request.path in posts):
        return refusal(request, 405, "this address is read only: GET and HEAD are all it knows")
    try:
        return await handler(request)
    except web.HTTPException as error:
        return refusal(request, error.status, "there is no such page" if error.status == 404 else error.reason)
    except QueryError as error:
        return refusal(request, 400, str(error))
    except Exception:
        log.exception("request_failed", path=request.path)
        return refusal(request, 500, "the request failed; the log says why")


def json_refusal(request: web.Request, status: int, sentence: str) -> web.Response:
    """Return the JSON answer to a refused request."""
    return web.Response(
        body=msgspec.json.encode({"error": sentence}), status=status, content_type="application/json", charset="utf-8"
    )


def _host_name(header: str) -> str:
    """Return the name in a Host header, without its port and the brackets of an IPv6 address."""
    header = header.lower()
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]
