"""The table of addresses, and the navigation. A new page is a module of `pages/`, a line here, and a template."""

from __future__ import annotations

from kafka_ratchet.app.web.pages.lookup import lookup_page
from kafka_ratchet.app.web.pages.overview import overview_page, tables_fragment
from kafka_ratchet.app.web.pages.own_table import own_table_page
from kafka_ratchet.app.web.pages.producers import producers_json
from kafka_ratchet.app.web.render import Page

PAGES = [
    Page("/", overview_page),
    Page("/tables", tables_fragment, has_json=False),
    Page("/lookup", lookup_page),
    Page("/table", own_table_page),
    Page("/producers.json", producers_json, has_json=False),
]

NAVIGATION = [
    ("/", "Overview"),
    ("/streams", "Streams"),
    ("/event", "Event"),
    ("/producers", "Producers"),
    ("/duplicates", "Duplicates"),
    ("/dead-letters", "Dead letters"),
    ("/sinks", "Sinks"),
    ("/workers", "Workers"),
    ("/settings", "Settings"),
    ("/policy", "Policy"),
    ("/proof", "Proof"),
]
"""In this order, as far as they are in the table."""


def links() -> list[tuple[str, str]]:
    """Address and text of the pages that the navigation leads to."""
    there = {page.path for page in PAGES}
    return [(path, text) for path, text in NAVIGATION if path in there]
