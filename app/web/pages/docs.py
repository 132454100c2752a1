"""The documentation of this version, as the page serves it: `docs/`, rendered from Markdown.

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
"""A page as sentences of ours name it."""


@cache
def _files() -> dict[str, Path]:
    """Pages and pictures by their address below /docs; nothing else is served."""
    found = sorted([*DOCS.rglob("*.md"), *DOCS.glob("pictures/*.png")])
    return {_address(path.relative_to(DOCS).as_posix()): path for path in found}


def _address(path: str) -> str:
    return path.removesuffix(".md")


async def docs_page(request: web.Request) -> web.StreamResponse:
    """One page of the documentation, or a picture of it."""
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
    """Title and body of a page. The text is ours; HTML in it is shown and not run."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(_files()[name].read_text("utf-8"))
    title = ""
    for token, inline in pairwise(tokens):
        if token.type == "heading_open":
            title = title or _text(inline)
            token.attrSet("id", _slug(_text(inline)))
    for inline in tokens:
        _lead_on(name, inline.children or ())
    body = Markup(parser.renderer.render(tokens, parser.options, {}))  # noqa: S704 - its HTML is the renderer's alone
    return title, body


def _lead_on(page: str, tokens: Sequence[Token]) -> None:
    """Let links lead to served pages and pictures; a file outside of docs/ is named without a link."""
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
    """Return a heading's anchor, by the rule that the links of docs/ are written for."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def _target(page: str, link: str) -> str | None:
    """Return the target of a page's link; None: the page serves no such file."""
    parts = urlsplit(link)
    if parts.scheme or not parts.path:
        return link
    name = _address(normpath((PurePosixPath(page).parent / parts.path).as_posix()))
    anchor = f"#{parts.fragment}" if parts.fragment else ""
    return f"/docs/{name}{anchor}" if name in _files() else None


def linked(sentence: object) -> Markup:
    """Return a sentence with links to the documentation pages in it."""
    text = plain(sentence)
    done, at = Markup(), 0
    for found in NAMED.finditer(text):
        if found[1] not in _files():
            continue
        done += escape(text[at : found.start()])
        done += Markup('<a href="/docs/{}{}">{}</a>').format(found[1], found[2] or "", found[0])
        at = found.end()
    return done + escape(text[at:])
