"""Digest of a program's code: equal for equal code, another one for other code, without libraries."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kafka_ratchet.app.status.answers import WorkerStatus
from kafka_ratchet.app.status.problems import about_programs
from kafka_ratchet.app.worker.program import DIGEST_DIGITS, digest_of, functions_of, load_program

SHOP = """
import json
from kafka_ratchet import App
from shop_models import Order
import shop_tools.prices as prices

app = App()
orders = app.stream("orders", value_type=Order)
totals = app.Table("totals", default=int)

@app.agent(orders)
async def add_up(orders):
    async for order in orders:
        totals[order.user] += prices.of(order)
"""
MODELS = """
import msgspec

class Order(msgspec.Struct):
    user: str
"""
PRICES = """
from shop_tools.rates import RATE

def of(order):
    return len(json.dumps(order.user)) * RATE
"""

Digest = Callable[..., str]


@pytest.fixture
def digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Digest]:
    """Writes a program into a folder and returns its digest; files are given by name."""

    def forget() -> None:
        for name in [each for each in sys.modules if each.startswith("shop")]:
            del sys.modules[name]
        importlib.invalidate_caches()

    def made(folder: str, **files: str) -> str:
        place = tmp_path / folder
        texts = {"shop": SHOP, "shop_models": MODELS, "shop_tools/prices": PRICES, "shop_tools/rates": "RATE = 2\n"}
        for name, text in {**texts, "shop_tools/__init__": "", **files}.items():
            (place / f"{name}.py").parent.mkdir(parents=True, exist_ok=True)
            (place / f"{name}.py").write_text(text)
        forget()
        with monkeypatch.context() as patch:
            patch.syspath_prepend(place)
            return digest_of(functions_of(load_program("shop:app")))

    yield made
    forget()


def test_equal_code_has_one_digest_wherever_it_is(digest: Digest) -> None:
    assert digest("one") == digest("other/place")
    assert len(digest("one")) == DIGEST_DIGITS


@pytest.mark.parametrize("file", ["shop", "shop_models", "shop_tools/prices", "shop_tools/rates"])
def test_a_change_in_any_module_of_the_program_is_another_digest(digest: Digest, file: str) -> None:
    texts = {"shop": SHOP, "shop_models": MODELS, "shop_tools/prices": PRICES, "shop_tools/rates": "RATE = 2\n"}
    assert digest("one") != digest("one", **{file: f"{texts[file]}\nADDED = 1\n"})
    assert digest("one", **{file: texts[file]}) == digest("two")


def test_what_the_program_does_not_import_is_no_part_of_it(digest: Digest) -> None:
    assert digest("one") == digest("two", shop_notes="NOTE = 1\n")


def test_a_module_of_this_package_is_known_by_its_own_functions_alone() -> None:
    names = ("kafka_ratchet.agents.examples.shared_table_join", "tests.testing.counting")
    first, second = (digest_of(functions_of(load_program(f"{name}:app"))) for name in names)
    assert first
    assert second
    assert first != second
    assert digest_of([]) == ""
    assert digest_of([len]) == ""


def test_workers_with_other_code_are_told_apart() -> None:
    same = [WorkerStatus(name, [], program="a1") for name in ("w1", "w2")]
    plain = WorkerStatus("w0", [])
    assert about_programs([*same, plain]) == []
    (said,) = about_programs([*same, plain, WorkerStatus("w3", [], program="b2")])
    assert said.startswith("workers run different code of the program: a1 on w1, w2; b2 on w3. ")
