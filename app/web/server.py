"""HTTP server of the page: its application with the checks of each request, its start and its stop."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterable, Mapping

import structlog
from aiohttp import web

from kafka_ratchet.app.settings import Settings, WebSettings
from kafka_ratchet.app.status.cluster_view import ClusterView
from kafka_ratchet.app.status.http import CannotBind, bind, is_wildcard, reachable_host, request_checks
from kafka_ratchet.app.status.past_view import PastView
from kafka_ratchet.app.status.result_view import SinksView
from kafka_ratchet.app.web.access import ACCESS, AccessRules, guard, warning_of
from kafka_ratchet.app.web.actions import ACTION_PATHS, add_actions
from kafka_ratchet.app.web.live import LIVE, LiveSender
from kafka_ratchet.app.web.login import add_login
from kafka_ratchet.app.web.pages.docs import linked
from kafka_ratchet.app.web.pages.settings import ORIGINS
from kafka_ratchet.app.web.readings import BOOTSTRAP, READINGS, Readings
from kafka_ratchet.app.web.render import CLUSTER_VIEW, FOLDER, PAST, RESULTS, SETTINGS, refusal, set_up_templates
from kafka_ratchet.app.web.routes import PAGES, links
from kafka_ratchet.errors import SettingsError, SetupError

log = structlog.get_logger(__name__)


class WebServer:
    """Server of the pages.

    Args:
        bootstrap: host:port[,host:port].
        settings: all settings.
        allow_hosts: host names that browsers may use for the page, in addition to the bound and the loopback names.
        origins: origin of each setting; see `kafka_ratchet.app.settings.origins`.
    """

    def __init__(
        self,
        bootstrap: str,
        settings: Settings,
        *,
        allow_hosts: Iterable[str] = (),
        origins: Mapping[str, str] | None = None,
    ) -> None:
        self._bootstrap = bootstrap
        self._settings = settings
        self._allow_hosts = set(allow_hosts)
        self._origins = dict(origins or {})
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        """Bind the address, start to serve the page, and return its URL.

        Raises:
            SetupError: host and port cannot be bound.
            SettingsError: the token or the certificate cannot be used.
        """
        tls = _tls_of(self._settings.web)
        host, port = self._settings.web.host, self._settings.web.port
        shown = "127.0.0.1" if is_wildcard(host) else host
        hosts = {host, reachable_host(host), *self._allow_hosts}
        runner = web.AppRunner(create_web_app(self._bootstrap, self._settings, hosts, self._origins), access_log=None)
        try:
            url = await bind(runner, host, port, shown, tls)
        except CannotBind as error:
            raise SetupError(
                f"the page cannot be served on {host!r} port {port}: {error}. "
                "Choose others with web.host and web.port, or port 0 for a free one"
            ) from None
        self._runner = runner
        if (warning := warning_of(self._settings)) is not None:
            log.warning(warning)
        return url

    async def stop(self) -> None:
        """Stop the server, if it runs."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None


def create_web_app(
    bootstrap: str, settings: Settings, hosts: Iterable[str], origins: Mapping[str, str] | None = None
) -> web.Application:
    """Return the aiohttp application of the page.

    hosts: names that the page accepts in the Host header, in addition to the loopback names

    Raises:
        SettingsError: the token cannot be used.
    """
    access = AccessRules(settings)
    posts = access.posts | (ACTION_PATHS if settings.web.write else frozenset())
    checks = request_checks(hosts, refusal, posts)
    application = web.Application(middlewares=[checks, guard(access, refusal)])
    application[ACCESS] = access
    application[SETTINGS] = settings
    application[ORIGINS] = dict(origins or {})
    application[BOOTSTRAP] = bootstrap
    application[READINGS] = Readings()
    application[LIVE] = LiveSender()
    application.on_shutdown.append(application[LIVE].close)
    application[RESULTS] = SinksView(bootstrap, settings)
    set_up_templates(application, links(), linked)

    async def cluster_view(application: web.Application) -> AsyncIterator[None]:
        async with ClusterView(bootstrap, settings) as asked:
            application[CLUSTER_VIEW] = asked
            application[PAST] = PastView(asked)
            yield

    application.cleanup_ctx.append(cluster_view)
    for page in PAGES:
        for path in page.paths:
            application.router.add_get(path, page.answer)
    if access.token is not None:
        add_login(application)
    if settings.web.write:
        add_actions(application)
    application.router.add_static("/static", FOLDER / "static")
    return application


def _tls_of(page: WebSettings) -> ssl.SSLContext | None:
    """Return the TLS context of the page; None for plain HTTP.

    Raises:
        SettingsError: certificate or key cannot be used.
    """
    if page.tls_cert is None:
        return None
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # A key that needs a password would ask for it at the terminal, if there is one.
        tls.load_cert_chain(page.tls_cert, page.tls_key, password=lambda: b"")
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"web.tls_cert and web.tls_key: certificate and key cannot be used: {error}. Name two PEM files that "
            "belong together, the key without a password"
        ) from None
    return tls
