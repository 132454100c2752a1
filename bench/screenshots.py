"""`./ratchet docs --screenshots`: a picture of each page of `ratchet web` in docs/pictures, from a real stream.

Broker, workers, producers, Spark job and browser are real. The pictures show producers that send records twice,
records without a sequence, a replayed dead letter, and a partition halted because retention has deleted unread records.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from bench.kafka import create
from bench.load import SEQUENCE
from bench.measure import RunningProcess
from bench.page_scene import get_json
from bench.sending import run_module
from bench.subjects import ROOT
from kafka_ratchet.app.local.embedded_kafka import EmbeddedBroker
from kafka_ratchet.app.local.ports import free_port
from kafka_ratchet.errors import BenchFailed

PICTURES: Final = ROOT / "docs" / "pictures"
WIDTH: Final = 1280
HEIGHT_MOST: Final = 1500
COLOURS: Final = 96
PARTITIONS: Final = 4
HALTED: Final = 3
TILLS: Final = {"till-1": 0.0, "till-2": 0.02, "till-7": 0.4, "till-3": 0.0}
"""Share of records sent twice, by producer name."""
SECONDS: Final = 100
"""Seconds of sending, long enough for a line in the chart."""
PATIENCE_S: Final = 120.0

SETTINGS: Final = """
app = "shop"
bootstrap = "{bootstrap}"
state_folder = "{folder}/state"

[streams.sales]
input = "shop.sales"
output = "shop.sales.once"
dead_letters = "shop.sales.dead"
duplicates = "shop.sales.duplicates"
duplicates_keep = "all"
identity = "producer"
sequence = "header:ratchet-sequence"

[streams.orders]
input = "shop.orders"
output = "shop.totals"
dead_letters = "shop.orders.dead"
identity = "key"
sequence = "header:ratchet-sequence"

[sink]
stream = "sales"
path = "{folder}/table"
columns = "article string, price double"
"""

OPTIONS: Final = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking")
PAGES: Final = {
    "overview": "/",
    "event": "/event?stream=sales&identity=till-7&sequence=7",
    "stream": "/streams/sales?state=halted",
    "identities": "/streams/sales/identities",
    "table": "/tables/totals?stream=orders",
    "producers": "/producers?stream=sales",
    "duplicates": "/duplicates?stream=sales&limit=2",
    "dead-letters": "/dead-letters?stream=sales&limit=2",
    "sink": "/sinks/results",
    "workers": "/workers",
    "settings": "/settings",
    "policy": "/policy",
    "proof": "/proof",
}


class Shop:
    """Sender of the tills' records."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
        self._choose = random.Random(7)
        self._last = dict.fromkeys(TILLS, 0)
        self._orders: dict[str, int] = {}

    def second(self, number: int) -> None:
        """Send the sales of one second. number: number of the second"""
        for at, (till, twice) in enumerate(TILLS.items()):
            for _ in range(self._choose.randrange(20, 40)):
                self._last[till] += 1
                for _ in range(2 if self._choose.random() < twice else 1):
                    self._sale(till, self._last[till], at)
        if number % 20 == 0:
            no_sequence = [("ratchet-producer", b"till-2")]
            self._producer.produce("shop.sales", b"{}", b"till-2", partition=1, headers=no_sequence)
        user = f"user-{self._choose.randrange(30)}"
        self._orders[user] = self._orders.get(user, 0) + 1
        value = json.dumps({"user": user, "amount": self._choose.randrange(1, 90)})
        headers = [("ratchet-sequence", SEQUENCE.pack(self._orders[user]))]
        self._producer.produce("shop.orders", value, user.encode(), headers=headers)
        self._producer.flush(PATIENCE_S)

    def _sale(self, till: str, sequence: int, partition: int) -> None:
        value = json.dumps({"article": f"A-{sequence % 50}", "price": 0.5 + sequence % 90})
        headers = [("ratchet-producer", till.encode()), ("ratchet-sequence", SEQUENCE.pack(sequence))]
        self._producer.produce("shop.sales", value, till.encode(), partition=partition, headers=headers)


def main(folder: Path, *, sink: bool) -> None:
    """Take the pictures of all pages.

    folder: folder for data; sink: True: run a Spark job; False: keep the old picture of its page
    """
    config = folder / "ratchet.toml"
    with ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker(folder / "kafka"))
        config.write_text(SETTINGS.format(bootstrap=broker.bootstrap, folder=folder), "utf-8")
        create(broker.bootstrap, "shop.sales", "shop.orders", partitions=PARTITIONS)
        shop = Shop(broker.bootstrap)
        address = f"127.0.0.1:{free_port()}"
        worker = _start("worker", config, "worker runs", "--app", "bench.peers.page_totals:app")
        stack.callback(lambda: worker.stop())
        web = _start("web", config, "The page is at", "--port", address.rpartition(":")[2])
        stack.callback(web.stop)
        page = f"http://{address}"
        for number in range(SECONDS):
            shop.second(number)
            time.sleep(1)
            if number == SECONDS // 2:
                _ratchet(config, "policy", "set", "off", "--stream", "orders")
                _ratchet(config, "policy", "set", "on", "--stream", "orders")
                if sink:
                    _ratchet(config, "sink", "--stream", "sales", "--max-records", "2000")
        _until_judged(page)
        if sink:
            _ratchet(config, "sink", "--stream", "sales", "--max-records", "2000")
        _ratchet(config, "dead-letters", "replay", "--stream", "sales", "--limit", "1")
        _until_judged(page)
        _ratchet(config, "verify", "--stream", "sales", "--record")
        worker.stop()
        for number in range(10):
            shop.second(number)
        _delete(broker.bootstrap, HALTED)
        worker = _start("worker", config, "worker runs", "--app", "bench.peers.page_totals:app")
        for number in range(20):
            shop.second(number)
            time.sleep(1)
        _take(page, {name: path for name, path in PAGES.items() if sink or name != "sink"})


def _start(command: str, config: Path, started: str, *more: str) -> RunningProcess:
    running = RunningProcess([sys.executable, "-m", "kafka_ratchet", command, "--config", str(config), *more], started)
    running.wait_until_started()
    return running


def _ratchet(config: Path, *words: str) -> None:
    run_module("kafka_ratchet", *words, "--config", str(config))


def _until_judged(page: str) -> None:
    ends_at = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends_at:
        if all(each["totals"]["lag"] == 0 for each in get_json(f"{page}/streams.json")):
            return
        time.sleep(1)
    raise BenchFailed("the worker has not judged all records in time")


def _delete(bootstrap: str, partition: int) -> None:
    """Delete all records in a partition of the input, as retention would."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.delete_records([TopicPartition("shop.sales", partition, -1)]).values():
        done.result(PATIENCE_S)


def _take(page: str, pages: dict[str, str]) -> None:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for option in OPTIONS:
        options.add_argument(option)
    browser = webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
    try:
        features = [{"name": "prefers-color-scheme", "value": "light"}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        for name, path in pages.items():
            _size(browser, 900)
            browser.get(page + path)
            time.sleep(1)
            height = min(HEIGHT_MOST, int(browser.execute_script("return document.documentElement.scrollHeight")))
            _size(browser, height)
            (PICTURES / f"page-{name}.png").write_bytes(_small(browser.get_screenshot_as_png()))
            print(f"page-{name}.png: {(PICTURES / f'page-{name}.png').stat().st_size:,} bytes", flush=True)
    finally:
        browser.quit()


def _size(browser: Any, height: int) -> None:
    metrics = {"width": WIDTH, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def _small(png: bytes) -> bytes:
    """Return a PNG picture with a palette, which is smaller, since pages have few colours."""
    from PIL import Image

    found = BytesIO()
    picture = Image.open(BytesIO(png)).convert("RGB")
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(found, "PNG", optimize=True)
    return found.getvalue()


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ratchet-screenshots-") as where:
        main(Path(where), sink="--no-sink" not in sys.argv)
