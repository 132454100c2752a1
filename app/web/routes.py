"""Table of all pages, and the navigation. A new page needs a module in `pages/`, a line here, and a template."""

from __future__ import annotations

from kafka_ratchet.app.web.live import events
from kafka_ratchet.app.web.pages.docs import docs_page
from kafka_ratchet.app.web.pages.dropped import dead_letters_page, duplicates_page
from kafka_ratchet.app.web.pages.event import event_page
from kafka_ratchet.app.web.pages.lookup import identities_page, identity_page, lookup_page, own_table_page
from kafka_ratchet.app.web.pages.overview import history_page, overview_page, tables_fragment
from kafka_ratchet.app.web.pages.policy import policy_page
from kafka_ratchet.app.web.pages.producers import producers_page
from kafka_ratchet.app.web.pages.proof import proof_page
from kafka_ratchet.app.web.pages.settings import settings_page
from kafka_ratchet.app.web.pages.sinks import sink_page, sinks_page
from kafka_ratchet.app.web.pages.streams import partitions_fragment, stream_page, streams_page
from kafka_ratchet.app.web.pages.workers import workers_page
from kafka_ratchet.app.web.render import Page

PAGES = [
    Page("/", overview_page),
    Page("/tables", tables_fragment, has_json=False),
    Page("/event", event_page),
    Page("/dead-letters", dead_letters_page),
    Page("/dead-letters.csv", dead_letters_page, has_json=False),
    Page("/dead-letters.ndjson", dead_letters_page, has_json=False),
    Page("/duplicates", duplicates_page),
    Page("/duplicates.csv", duplicates_page, has_json=False),
    Page("/duplicates.ndjson", duplicates_page, has_json=False),
    Page("/streams/{stream}/identities", identities_page),
    Page("/streams/{stream}/identity", identity_page),
    Page("/history", history_page),
    Page("/events", events, has_json=False),
    Page("/streams", streams_page),
    Page("/streams/{stream}", stream_page),
    Page("/streams/{stream}/partitions", partitions_fragment, has_json=False),
    Page("/workers", workers_page),
    Page("/lookup", lookup_page),
    Page("/table", own_table_page),
    Page("/tables/{table}", own_table_page),
    Page("/producers", producers_page),
    Page("/sinks", sinks_page),
    Page("/sinks/{name}", sink_page),
    Page("/settings", settings_page),
    Page("/policy", policy_page),
    Page("/proof", proof_page),
    Page("/docs", docs_page, has_json=False),
    Page("/docs/{page}", docs_page, has_json=False),
    Page("/docs/{folder}/{page}", docs_page, has_json=False),
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
    ("/docs", "Docs"),
]
"""Address and text of each entry of the navigation, in order. Entries without a page in PAGES are not shown."""


def links() -> list[tuple[str, str]]:
    """Return address and text of each entry in the navigation, without entries of missing pages."""
    there = {page.path for page in PAGES}
    return [(path, text) for path, text in NAVIGATION if path in there]
