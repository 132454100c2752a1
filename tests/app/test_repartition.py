"""Two streams in the place of one that is judged by identity wherever its records arrive."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kafka_ratchet.app.repartition import RepartitionSettings, arrives_in, judging, repartitioned
from kafka_ratchet.app.settings import Settings, load, with_arrivals
from kafka_ratchet.app.settings_sections import StreamSettings
from kafka_ratchet.app.worker.steps import with_steps
from kafka_ratchet.app.worker.stream import Stream
from kafka_ratchet.app.worker.topics import StreamTopics
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.rule.identity import Identity

TOML = """
app = "shop"
[streams.hooks]
input = "in"
output = "out"
dead_letters = "dead"
identity = "field:id"
repartition_by = "identity"
"""


def test_one_stream_sends_and_the_other_judges(tmp_path: Path) -> None:
    (tmp_path / "ratchet.toml").write_text(
        TOML + "partitions = 12\n[streams.other]\ninput = 'a'\noutput = 'b'\ndead_letters = 'c'"
    )
    settings = load(tmp_path / "ratchet.toml")
    assert list(settings.streams) == ["hooks-arrivals", "hooks", "other"]
    arrivals, hooks = settings.streams["hooks-arrivals"], settings.streams["hooks"]
    assert isinstance(arrivals, RepartitionSettings)
    assert (arrivals.input, arrivals.output, arrivals.to_partitions) == ("in", "shop-repartition.hooks", 12)
    assert (hooks.input, hooks.output, hooks.dead_letters) == ("shop-repartition.hooks", "out", "dead")
    assert arrivals.rule == {"identity": "field:id", "sends_to": "shop-repartition.hooks"}
    assert arrives_in(settings.streams, "hooks") == "in"
    assert arrives_in(settings.streams, "other") == "a"
    assert repartitioned("shop", settings.streams) == settings.streams
    assert list(judging(settings.streams)) == ["hooks", "other"]


def test_nobody_is_told_to_bound_a_stream_that_keeps_no_identities(tmp_path: Path) -> None:
    (tmp_path / "ratchet.toml").write_text(TOML + 'sequence = "none"\ninactive_after_s = 60')
    topics = StreamTopics("changelog", 1, 1, 1, 1, sent=1)
    with capture_logs() as said:
        for name, settings in load(tmp_path / "ratchet.toml").streams.items():
            Stream("shop", name, settings, topics, tmp_path, 1 << 20)
    assert said == []


def test_the_only_stream_is_the_one_that_judges(tmp_path: Path) -> None:
    (tmp_path / "ratchet.toml").write_text(TOML)
    settings = load(tmp_path / "ratchet.toml")
    assert settings.stream()[0] == "hooks"
    arrivals = settings.streams["hooks-arrivals"]
    assert isinstance(arrivals, RepartitionSettings)
    assert arrivals.to_partitions is None  # as many as the input has


def test_whoever_makes_settings_by_hand_gets_the_same() -> None:
    stream = StreamSettings(
        input="in", output="out", dead_letters="dead", identity=Identity.parse("key"), repartition_by="identity"
    )
    given = Settings(app="shop", streams={"hooks": stream})
    for made in (with_steps(given, None), with_arrivals(given), with_arrivals(with_steps(given, None))):
        assert [(name, each.input) for name, each in made.streams.items()] == [
            ("hooks-arrivals", "in"),
            ("hooks", "shop-repartition.hooks"),
        ]
        assert made.streams["hooks"].rule["repartition_by"] == "identity"  # its state is of no use without it


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            "[streams.other]\ninput='shop-hooks-arrivals-dead-letters'\noutput='b'\ndead_letters='c'",
            "to the topic 'shop-hooks-arrivals-dead-letters', which another setting names too",
        ),
        (
            "[streams.hooks-arrivals]\ninput='a'\noutput='b'\ndead_letters='c'",
            "the settings already have a stream of that name. Rename 'hooks' or 'hooks-arrivals'",
        ),
        ("deduplicate = false", "repartition_by determines in which partition records are deduplicated, but dedup"),
    ],
)
def test_what_cannot_be(tmp_path: Path, more: str, says: str) -> None:
    (tmp_path / "ratchet.toml").write_text(TOML + more)
    with pytest.raises(SettingsError, match=says):
        load(tmp_path / "ratchet.toml")


def test_the_internal_topic_is_nobodys_to_name(tmp_path: Path) -> None:
    (tmp_path / "ratchet.toml").write_text(TOML.replace('input = "in"', 'input = "shop-repartition.hooks"'))
    with pytest.raises(SettingsError, match="a topic that Ratchet itself fills"):
        load(tmp_path / "ratchet.toml")


def test_a_partition_is_nobodys_identity(tmp_path: Path) -> None:
    (tmp_path / "ratchet.toml").write_text(TOML.replace("field:id", "partition"))
    with pytest.raises(SettingsError, match=r"repartition_by.*Remove one of the two settings"):
        load(tmp_path / "ratchet.toml")
