"""The documentation on the page: rendered from docs/, linked from sentences, and nothing else is served."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from aiohttp import ClientSession

from kafka_ratchet.app.web.pages.docs import DOCS, _files, _rendered, linked
from kafka_ratchet.app.web.server import WebServer
from tests.app.worker.known_worker import settings_for

ROOT = Path(__file__).parents[3]
PAGES = [name for name, path in _files().items() if path.suffix == ".md"]


def test_every_page_of_docs_is_there() -> None:
    assert DOCS.resolve() == ROOT / "docs"
    assert len(PAGES) == len([*(ROOT / "docs").rglob("*.md")]) > 100
    assert {"README", "design", "guide/why", "reference/halted"} <= set(PAGES)


def test_links_lead_to_pages_and_anchors_that_are_served() -> None:
    astray = []
    for page in PAGES:
        title, body = _rendered(page)
        assert title
        for target in re.findall(r'(?:href|src)="([^"]*)"', body):
            name, _, anchor = target.removeprefix("/docs/").partition("#")
            if target.startswith(("http://", "https://")):
                continue
            to = page if target.startswith("#") else name
            if to not in _files() or (anchor and f'id="{anchor}"' not in _rendered(to)[1]):
                astray.append((page, target))
    assert not astray


def test_html_in_a_page_is_shown_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A <b>title</b>\n\n<script>x()</script> [there](javascript:x())\n", "utf-8")
    monkeypatch.setattr("kafka_ratchet.app.web.pages.docs._files", lambda: {"page": page})
    _, body = _rendered.__wrapped__("page")
    assert "<script" not in body
    assert "<b>" not in body
    assert 'href="javascript' not in body


def test_a_sentence_names_pages_as_links_and_stays_text() -> None:
    assert linked("<i>: see docs/reference/halted.md#causes, or docs/guide/nothing.md") == (
        '&lt;i&gt;: see <a href="/docs/reference/halted#causes">docs/reference/halted.md#causes</a>, or '
        "docs/guide/nothing.md"
    )


async def test_pages_pictures_and_nothing_else_are_served(broker: str) -> None:
    web = WebServer(broker, settings_for(broker, "events"))
    url = await web.start()
    try:
        async with ClientSession() as http:
            for path, found in (
                ("/docs", "<h1"),
                ("/docs/guide/why", "ratchet why"),
                ("/docs/reference/halted", "ratchet resume"),
            ):
                async with http.get(url + path) as answer:
                    assert (answer.status, found in await answer.text()) == (200, True)
            async with http.get(f"{url}/docs/pictures/page-overview.png") as answer:
                assert (answer.status, answer.content_type) == (200, "image/png")
            for path in ("/docs/conf.py", "/docs/..%2fREADME", "/docs/guide", "/docs/guide/why.md", "/docs/%00"):
                async with http.get(url + path) as answer:
                    assert answer.status == 404
    finally:
        await web.stop()
