"""The page in a real browser: `pytest -m browser tests/browser` (needs chromium and chromedriver)."""

from __future__ import annotations

import asyncio
import re
import shutil
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.expected_conditions import url_to_be
from selenium.webdriver.support.wait import WebDriverWait

from kafka_ratchet.app.settings import SinkSettings
from kafka_ratchet.app.status.answers import IdentityStatus
from kafka_ratchet.app.status.server import StatusServer
from kafka_ratchet.app.web.routes import PAGES
from kafka_ratchet.app.web.server import WebServer
from tests.app.web.test_own_pages import serving
from tests.app.worker.known_worker import KnownWorker, member, partition, settings_for, table

pytestmark = pytest.mark.browser

Run = Callable[[Coroutine[Any, Any, Any]], Any]
Browser = webdriver.Chrome

OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

FOLD = 720
"""Pixels of a page that a laptop's window of 1,280 pixels shows."""
POLL_S = 2
"""The page asks for new figures this often."""


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Runs coroutines in a loop of another thread, where the servers live on while the browser looks at them."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(60)
    loop.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("there is no chromium with chromedriver on this machine")
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for option in OPTIONS:
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
    yield chrome
    chrome.quit()


@pytest.fixture
def worker() -> KnownWorker:
    known = KnownWorker()
    known.sequences["events", b"<script>document.title='x'</script>"] = [IdentityStatus(0, 10, 12)]
    return known


@pytest.fixture
def page(run: Run, broker: str, new_topic: Callable[..., str], worker: KnownWorker, tmp_path: Path) -> Iterator[str]:
    topic = new_topic(partitions=2)
    output = f"{topic}-out"  # read by a sink, whose figures are on the page too
    admin = AdminClient({"bootstrap.servers": broker})
    admin.create_topics([NewTopic(output, 2, 1)])[output].result(30)
    worker.tables_now = [table(partition(0, fresh=1_000_000), partition(1, state="halted", error="gone"), topic=topic)]
    settings = settings_for(broker, topic, sink=SinkSettings(path=str(tmp_path / "results" / ("x" * 60))))
    status, web = StatusServer(worker, worker="worker-a"), WebServer(broker, settings)
    group = member(settings, topic, run(status.start()))
    run(group.__aenter__())
    yield run(web.start())
    run(web.stop())
    run(group.__aexit__(None, None, None))
    run(status.stop())


def console(browser: Browser) -> list[dict[str, str]]:
    """Return the messages of the browser's console since the last call."""
    found: list[dict[str, str]] = browser.get_log("browser")  # type: ignore[no-untyped-call]
    return found


def resize(browser: Browser, width: int, scheme: str = "light") -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def count_fresh(worker: KnownWorker, fresh: int) -> None:
    events = worker.tables_now[0]
    worker.tables_now = [replace(events, partitions=[replace(row, fresh=fresh) for row in events.partitions])]


def cell(browser: Browser) -> str:
    """Partition 0's count of fresh records, as it is now: the element may have been replaced in between."""
    text = browser.execute_script("return document.querySelector('tbody td.number').textContent.trim()")
    return str(text)


def test_figures_change_by_themselves_until_they_are_paused(browser: Browser, page: str, worker: KnownWorker) -> None:
    resize(browser, 1280)
    browser.get(page)
    assert cell(browser) == "1,000,000"
    count_fresh(worker, 2_000_000)
    WebDriverWait(browser, 20).until(lambda _: cell(browser) == "2,000,000")

    button = browser.find_element(By.ID, "pause")
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    # An answer that was on its way when the button was pressed may still arrive; after that nothing may be asked.
    asked = "return performance.getEntriesByType('resource').filter(e => e.name.endsWith('/tables')).length"
    WebDriverWait(browser, 20).until(
        lambda _: browser.execute_async_script(
            f"const done = arguments[0], before = (() => {{ {asked} }})();"
            f"setTimeout(() => done(before === (() => {{ {asked} }})()), {POLL_S * 1000 + 500})"
        )
    )
    count_fresh(worker, 3_000_000)
    before = browser.execute_script(asked)
    browser.execute_async_script(f"setTimeout(arguments[0], {POLL_S * 1000 + 500})")
    assert (browser.execute_script(asked), cell(browser)) == (before, "2,000,000")

    button.click()
    WebDriverWait(browser, 20).until(lambda _: cell(browser) == "3,000,000")


def test_the_sink_is_there_and_its_figures_come_by_themselves(browser: Browser, page: str, broker: str) -> None:
    resize(browser, 1280)
    browser.get(page)
    rows = "return [...document.querySelectorAll('#scroll-results tbody tr')].map(row => row.innerText.split(/\\s+/))"
    WebDriverWait(browser, 20).until(lambda _: [row[0] for row in browser.execute_script(rows)] == ["0", "1"])
    # In one step: an element that was found may be replaced before its text is read.
    topic = browser.execute_script("return document.querySelector('#caption-results code').textContent")
    producer = Producer({"bootstrap.servers": broker})
    producer.produce(topic, b"x", partition=1)
    producer.flush(30)
    WebDriverWait(browser, 30).until(lambda _: browser.execute_script(rows)[1][-3:-1] == ["1", "1"])


def test_a_change_of_workers_is_announced_and_figures_are_not(browser: Browser, page: str, worker: KnownWorker) -> None:
    browser.get(page)
    said = "return document.getElementById('announcement').textContent"
    count_fresh(worker, 4_000_000)
    WebDriverWait(browser, 20).until(lambda _: cell(browser) == "4,000,000")
    assert browser.execute_script(said) == ""
    events = worker.tables_now[0]
    worker.tables_now = [replace(events, partitions=[partition(0), partition(1)])]
    WebDriverWait(browser, 20).until(lambda _: "0 partitions halted" in browser.execute_script(said))


@pytest.mark.parametrize("path", ["/workers?range=6h", "/history?stream=events&range=1h"])
def test_workers_and_history_change_by_themselves(browser: Browser, page: str, worker: KnownWorker, path: str) -> None:
    browser.get("about:blank")  # the last page still polls a stopped server
    console(browser)
    browser.get(page + path)
    browser.execute_script("document.querySelector('#tables').firstElementChild.dataset.before = 'yes'")
    before = browser.execute_script("return document.getElementById('tables').children.length")
    count_fresh(worker, 6_000_000)
    WebDriverWait(browser, 20).until(
        lambda _: browser.execute_script("return document.querySelector('[data-before]') === null")
    )
    assert browser.execute_script("return document.getElementById('tables').children.length") == before
    assert len(browser.find_elements(By.ID, "tables")) == 1
    assert browser.current_url.endswith(path)
    assert console(browser) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 768, 1280])
def test_nothing_overflows_and_the_policy_is_kept(browser: Browser, page: str, width: int, scheme: str) -> None:
    resize(browser, width, scheme)
    browser.get("about:blank")  # the last page still polls a stopped server
    console(browser)
    for path in ("/", "/lookup?identity=sensor"):
        browser.get(page + path)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width, path
    assert console(browser) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_legible_in_light_and_dark(browser: Browser, page: str, scheme: str) -> None:
    """WCAG 2.2, 1.4.3: contrast of at least 4.5 to 1 for every text."""
    resize(browser, 1280, scheme)
    browser.get(page)
    faint = browser.execute_script(CONTRAST)
    assert faint == []


HOSTILE = "<script>document.title='x'</script>"
READING = [
    "/",
    "/history",
    "/streams",
    "/streams/events",
    "/streams/events?state=halted",
    "/streams/%3Cb%3E",
    "/workers",
    "/lookup?identity=%3Cscript%3Edocument.title%3D'x'%3C%2Fscript%3E&sequence=11",
    "/event",
    "/event?identity=%3Cscript%3Edocument.title%3D'x'%3C%2Fscript%3E",
    "/event?topic=%3Cb%3E&partition=0&offset=0",
    "/streams/events/identities",
    "/streams/events/identity?identity=%3Cscript%3Edocument.title%3D'x'%3C%2Fscript%3E",
    "/producers",
    "/duplicates",
    "/dead-letters",
    "/sinks",
    "/sinks/results",
    "/sinks/%3Cb%3E",
    "/tables/%3Cb%3E",
    "/settings",
    "/policy",
    "/proof",
    "/docs",
    "/docs/design",
    "/docs/guide/why",
]


@pytest.mark.parametrize(("width", "scheme"), [(320, "light"), (1280, "dark")])
def test_the_pages_that_ask_are_narrow_legible_and_run_no_name(
    browser: Browser, page: str, width: int, scheme: str
) -> None:
    resize(browser, width, scheme)
    browser.get("about:blank")  # the last page still polls a stopped server
    console(browser)
    for path in READING:
        browser.get(page + path)
        assert browser.title.endswith(" · Ratchet"), path
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width, path
        assert browser.execute_script(CONTRAST) == [], path
        assert len(browser.find_elements(By.TAG_NAME, "h1")) == 1, path
    # Addresses that ask for what is not there are answered with 4xx and 503, which the browser logs.
    said = [each["message"] for each in console(browser)]
    assert [each for each in said if "Failed to load resource" not in each] == []
    browser.get(page + "/streams/events/identities")
    browser.find_element(By.LINK_TEXT, HOSTILE).click()
    WebDriverWait(browser, 20).until(lambda chrome: chrome.title == "Identity · Ratchet")
    assert HOSTILE in browser.find_element(By.TAG_NAME, "h2").text


def test_every_page_of_the_table_of_addresses_is_walked() -> None:
    walked = {path.split("?")[0] for path in READING}
    for address in PAGES:
        if address.path in ("/tables", "/events", "/table") or address.path.endswith(
            (".csv", ".ndjson", "/partitions")
        ):
            continue  # parts of pages, files, and an old address
        pattern = re.compile(re.sub(r"{[a-z]+}", "[^/]+", address.path))
        assert any(pattern.fullmatch(path) for path in walked), address.path


def test_a_newcomer_gets_from_the_first_page_to_each_answer(browser: Browser, page: str) -> None:
    resize(browser, 1280)
    browser.get(page)
    field = browser.find_element(By.CSS_SELECTOR, ".follow input[name=identity]")
    assert browser.execute_script("return arguments[0].getBoundingClientRect().bottom", field) < 400
    field.send_keys(HOSTILE)
    browser.find_element(By.CSS_SELECTOR, ".follow input[name=sequence]").send_keys("11" + Keys.ENTER)
    WebDriverWait(browser, 20).until(lambda chrome: chrome.title == "Event · Ratchet")
    for text, ends in (
        ("Duplicates by producer", "/producers?stream=events"),
        ("Partitions by lag", "/streams/events?sort=lag"),
        ("See more", "/streams/events?state=halted"),
    ):
        browser.get(page)
        browser.find_element(By.PARTIAL_LINK_TEXT, text).click()
        WebDriverWait(browser, 20).until(url_to_be(page + ends))
    assert (
        "ratchet resume --stream events --partition 1"
        in browser.find_element(By.ID, "halted").find_element(By.XPATH, "..").text
    )


def test_the_way_is_one_line_and_the_chart_is_above_the_fold(
    browser: Browser, run: Run, broker: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(partitions=2)
    known = serving(settings_for(broker, topic), topic, tmp_path, 2)
    url = run(known.__aenter__())
    try:
        resize(browser, 1280)
        browser.get(url)
        tops = browser.execute_script(
            "return Array.from(document.querySelectorAll('.strip li'), each => each.getBoundingClientRect().top)"
        )
        assert len(tops) == 9
        assert max(tops) == min(tops)
        bottom = "const e = document.querySelector('#chart canvas'); return e && e.getBoundingClientRect().bottom"
        WebDriverWait(browser, 20).until(lambda _: browser.execute_script(bottom))
        assert browser.execute_script(bottom) <= FOLD
        link = browser.find_element(By.CSS_SELECTOR, "nav a[href='/docs']")
        link.click()
        browser.find_element(By.LINK_TEXT, "The proof: ratchet verify").click()
        WebDriverWait(browser, 20).until(url_to_be(f"{url}/docs/guide/verify"))
    finally:
        run(known.__aexit__(None, None, None))


def test_an_update_keeps_the_place_in_a_wide_table(browser: Browser, page: str, worker: KnownWorker) -> None:
    resize(browser, 320)
    browser.get(page)
    browser.execute_script("document.querySelector('.scroll').scrollLeft = 150")
    count_fresh(worker, 5_000_000)
    WebDriverWait(browser, 20).until(lambda _: cell(browser) == "5,000,000")
    assert browser.execute_script("return document.querySelector('.scroll').scrollLeft") == 150


def test_the_form_by_keyboard_with_a_hostile_identity(browser: Browser, page: str) -> None:
    resize(browser, 1280)
    browser.get(page + "/lookup?identity=sensor")
    browser.switch_to.active_element.send_keys(Keys.TAB)
    assert browser.switch_to.active_element.text == "Skip to content"
    field = browser.find_element(By.NAME, "identity")
    field.clear()
    field.send_keys(HOSTILE)
    browser.find_element(By.NAME, "sequence").send_keys("11" + Keys.ENTER)
    # The page before it has the same title: wait for the answer, not for the title.
    WebDriverWait(browser, 20).until(lambda chrome: "sequence=11" in chrome.current_url)
    row = WebDriverWait(browser, 20).until(lambda chrome: chrome.find_element(By.CSS_SELECTOR, "tbody tr")).text
    assert browser.title == "Look-up · Ratchet"
    assert row.split() == ["0", "10", "12", "◑", "unknown", "worker-a"]


CONTRAST = """
const parse = c => (c.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
  .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const behind = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
  if (c.length < 4 || c[3] === 1) return c; } return [255, 255, 255]; };
const faint = [];
for (const e of document.querySelectorAll('body *')) {
  const text = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
  if (!text || e.closest('noscript, .visually-hidden, option')) continue;
  const [a, b] = [light(parse(getComputedStyle(e).color)), light(behind(e))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) faint.push(e.textContent.trim().slice(0, 40) + ' ' + ratio.toFixed(2));
}
return faint;
"""
