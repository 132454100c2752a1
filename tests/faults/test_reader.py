import json

import pytest

from faults.reader import StoreResult
from kafka_ratchet.app.cli import run


@pytest.mark.long  # a broker of its own, a PostgreSQL, and some forty processes: two minutes
def test_readers_under_fire_count_each_record_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["faults", "reader", "--kills", "6", "--seed", "1917", "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (told["seed"], told["lost"], told["doubled"]) == (1917, 0, 0)
    assert set(told["stores"]) == {"sqlite", "postgres", "duckdb"}
    for store in told["stores"].values():
        assert (store["kills"], store["behind"]) == (6, 0)
        assert store["rows"] > 1000


def test_a_run_that_has_written_nothing_is_not_all_right() -> None:
    assert not StoreResult().ok
    assert StoreResult(rows=1).ok
    for fault in ("lost", "doubled", "behind"):
        assert not StoreResult(rows=1, **{fault: 1}).ok
