"""Documentation of this version: the Markdown files in `docs/`, rendered as HTML.

GET /docs               the list of all pages
GET /docs/guide/why     one page; pictures are at /docs/pictures
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape

from kafka_ratchet.app.web.render import FOLDER, html_response, plain, refusal

DOCS: Final = FOLDER.parents[1] / "docs"
START: Final = "README"
NAMED: Final = re.compile(r"docs/((?:guide/|reference/|decisions/)?[a-z0-9-]+)\.md(#[\w-]+)?")
"""Pattern of the path of a documentation page in a sentence."""


@cache
def _files() -> dict[str, Path]:
    """Return the files to serve, pages and pictures, by their path below /docs."""
    found = sorted([*DOCS.rglob("*.md"), *DOCS.glob("pictures/*.png")])
    return {_address(path.relative_to(DOCS).as_posix()): path for path in found}


def _address(path: str) -> str:
    return path.removesuffix(".md")


async def docs_page(request: web.Request) -> web.StreamResponse:
    """Return the response with a page of the documentation, or with one of its pictures."""
    name = "/".join(request.match_info.values()) or START
    path = _files().get(name)
    if path is None:
        return refusal(request, 404, "there is no such page in the documentation of this version; /docs lists all")
    if path.suffix == ".png":
        return web.FileResponse(path)
    title, body = _rendered(name)
    return html_response(request, "docs.html", {"title": title, "body": body})


@cache
def _rendered(name: str) -> tuple[str, Markup]:
    """Return title and HTML of a documentation page. HTML in the page's own text is escaped."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(_files()[name].read_text("utf-8"))
    title = ""
    for token, inline in pairwise(tokens):
        if token.type == "heading_open":
            title = title or _text(inline)
            token.attrSet("id", _slug(_text(inline)))
    for inline in tokens:
        _rewrite_links(name, inline.children or ())
    body = Markup(parser.renderer.render(tokens, parser.options, {}))  # noqa: S704 - its HTML is the renderer's alone
    return title, body


def _rewrite_links(page: str, tokens: Sequence[Token]) -> None:
    """Rewrite the links in a page to the addresses of served pages and pictures; remove links to other files."""
    tags: list[str] = []
    for token in tokens:
        if token.type == "image":
            token.attrSet("src", _target(page, str(token.attrs["src"])) or "")
        elif token.type == "link_open":
            target = _target(page, str(token.attrs["href"]))
            tags.append("a" if target else "span")
            token.tag, token.attrs = tags[-1], {"href": target} if target else {}
        elif token.type == "link_close":
            token.tag = tags.pop()


def _text(inline: Token) -> str:
    return "".join(each.content for each in inline.children or ())


def _slug(heading: str) -> str:
    """Return the anchor of a heading, as the links in docs/ write it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def _target(page: str, link: str) -> str | None:
    """Return the address for a link in the documentation page `page`; None if the linked file is not served."""
    parts = urlsplit(link)
    if parts.scheme or not parts.path:
        return link
    name = _address(normpath((PurePosixPath(page).parent / parts.path).as_posix()))
    anchor = f"#{parts.fragment}" if parts.fragment else ""
    return f"/docs/{name}{anchor}" if name in _files() else None


def linked(sentence: object) -> Markup:
    """Return a sentence as HTML, with each path of a documentation page as a link."""
    text = plain(sentence)
    done, at = Markup(), 0
    for found in NAMED.finditer(text):
        if found[1] not in _files():
            continue
        done += escape(text[at : found.start()])
        done += Markup('<a href="/docs/{}{}">{}</a>').format(found[1], found[2] or "", found[0])
        at = found.end()
    return done + escape(text[at:])
