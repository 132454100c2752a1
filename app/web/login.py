"""Addresses of the login form, the login and the logout."""

from __future__ import annotations

from aiohttp import web

from kafka_ratchet.app.web.access import ACCESS, LOGIN, LOGOUT, TooManyFailures, caller_of
from kafka_ratchet.app.web.render import html_response

NEXT_MOST = 2_000


def add_login(application: web.Application) -> None:
    """Add the addresses for login and logout to the application. Call it only if the page has a token."""
    application.router.add_get(LOGIN, _form)
    application.router.add_post(LOGIN, _log_in)
    application.router.add_post(LOGOUT, _log_out)


async def _form(request: web.Request) -> web.Response:
    return _shown(request, request.query.get("next", "/"))


async def _log_in(request: web.Request) -> web.Response:
    form = await request.post()
    given, then = form.get("token"), form.get("next")
    then = then if isinstance(then, str) else "/"
    access = request.app[ACCESS]
    try:
        is_right = isinstance(given, str) and access.is_token(request, given.strip())
    except TooManyFailures as error:
        response = _shown(request, then, str(error), 429)
        response.headers["Retry-After"] = str(error.wait_s)
        return response
    if not is_right:
        return _shown(
            request, then, "this is not the token of this page. It is in the file that web.token_file names", 403
        )
    response = _see(_own_page(then))
    access.start_session(request, response)
    return response


async def _log_out(request: web.Request) -> web.Response:
    """End the session, and redirect to the login form. The posted form needs no mark: a forged logout does no harm."""
    response = _see(LOGIN)
    request.app[ACCESS].end_session(request, response)
    return response


def _shown(request: web.Request, then: str, problem: str | None = None, status: int = 200) -> web.Response:
    context = {"then": _own_page(then), "problem": problem, "is_in": caller_of(request).session is not None}
    return html_response(request, "login.html", context, status)


def _see(path: str) -> web.Response:
    return web.Response(status=303, headers={"Location": path})


def _own_page(path: str) -> str:
    """Return the path to open after the login: `path` if it surely belongs to this page; else "/"."""
    is_own = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isascii() and path.isprintable()
    return path if is_own and len(path) <= NEXT_MOST else "/"
