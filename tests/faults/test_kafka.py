"""The Kafka of a run comes up whole."""

from pathlib import Path

import pytest

from faults.kafka import EmbeddedKafka


@pytest.mark.long  # half a minute for a tool of the repository: a fault run whose Kafka does not start says so
def test_a_node_that_the_others_do_not_know_is_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faults.kafka.LET_IN_LIMIT_S", 5.0)
    kafka = EmbeddedKafka(tmp_path, nodes=3, workers=0)
    lost = kafka.nodes[2]
    really = lost.wait_until_ready

    def ends() -> None:
        """Kill it between its first answer and the others' knowledge of it."""
        lost.kill()
        monkeypatch.setattr(lost, "wait_until_ready", really)

    monkeypatch.setattr(lost, "wait_until_ready", ends)
    with kafka:
        assert set(kafka.admin().list_topics(timeout=10).brokers) == {1, 2, 3}
