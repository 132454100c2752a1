"""The settings that internal streams of a program have, and what is refused of them."""

from __future__ import annotations

from typing import Any

import pytest

from kafka_ratchet.agents.program import App
from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.settings_sections import StreamSettings
from kafka_ratchet.app.worker.group_rules import rules_of
from kafka_ratchet.app.worker.sent_topics import check_topics
from kafka_ratchet.app.worker.steps import with_steps
from kafka_ratchet.errors import SettingsError

ORDERS = {"input": "orders.in", "output": "orders.out", "dead_letters": "orders.dead", "replication": 3}
SECTION = {"input": "shop-repartition.by-user", "output": "by-user.out", "dead_letters": "by-user.dead"}


def settings(**streams: dict[str, Any]) -> Settings:
    return Settings(
        app="shop",
        streams={name.replace("_", "-"): StreamSettings.model_validate(each) for name, each in streams.items()},
    )


def program(name: str = "by-user") -> App:
    app = App()
    app.stream("orders").group_by(name, lambda order: order["user"])
    return app


def test_without_a_section_names_are_made_of_app_and_stream() -> None:
    app = program()
    made = with_steps(settings(orders=ORDERS), app)
    check_topics(app, made)
    assert list(made.streams) == ["orders", "by-user"]
    stream = made.streams["by-user"]
    assert (stream.input, stream.output, stream.dead_letters) == (
        "shop-repartition.by-user",
        "shop-by-user",
        "shop-by-user-dead-letters",
    )
    assert (stream.deduplicate, stream.replication, made.creates_topics("by-user")) == (False, 3, True)
    topic = app.streams["by-user"].topic
    assert topic is not None
    assert topic.name == stream.input
    rules = rules_of(made, app)
    assert (rules["internal streams"], rules["agents of orders"]) == ("by-user", "group_by by-user")
    assert rules["streams.by-user.input"] == stream.input


def test_a_section_says_where_it_goes() -> None:
    made = with_steps(settings(by_user=SECTION, orders=ORDERS), program())
    assert list(made.streams) == ["orders", "by-user"]
    assert (made.streams["by-user"].output, made.streams["by-user"].deduplicate) == ("by-user.out", False)


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"input": "elsewhere"}, "so its input must be 'shop-repartition.by-user'"),
        ({"deduplicate": True}, "streams.by-user.deduplicate: stream by-user is an internal one of the program"),
    ],
)
def test_a_section_that_does_not_fit(section: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        with_steps(settings(orders=ORDERS, by_user=SECTION | section), program())


def test_topics_that_another_stream_has() -> None:
    taken = ORDERS | {"output": "shop-by-user"}
    with pytest.raises(SettingsError, match=r"stream orders writes to topic 'shop-by-user', too. Write a section"):
        with_steps(settings(orders=taken), program())
    with pytest.raises(SettingsError, match="'By User': use a lower-case letter"):
        with_steps(settings(orders=ORDERS), program("By User"))


def test_a_step_named_after_a_topic_of_ratchets_own() -> None:
    with pytest.raises(SettingsError, match=r"stream policy: its topic would be 'shop-policy', which Ratchet or Kafka"):
        with_steps(settings(orders=ORDERS), program("policy"))


def test_events_that_would_go_round() -> None:
    round_ = ORDERS | {"input": "shop-by-user"}
    with pytest.raises(SettingsError, match=r"its topic 'shop-by-user' is the input of stream orders.*forever"):
        with_steps(settings(orders=round_), program())


def test_a_step_that_is_declared_before_what_feeds_it() -> None:
    app = App()
    app.stream("both", internal=True)
    app.stream("orders").group_by("by", lambda order: order["user"]).group_by("both", lambda order: order["shop"])
    assert list(with_steps(settings(orders=ORDERS), app).streams) == ["orders", "by", "both"]


def test_a_worker_without_the_program_does_not_read_an_internal_topic() -> None:
    given = settings(orders=ORDERS, by_user=SECTION)
    for without in (None, App()):
        with pytest.raises(
            SettingsError, match=r"streams\.by-user: its input shop-repartition\.by-user is filled by agents"
        ):
            with_steps(given, without)


@pytest.mark.parametrize("part", ["input", "output", "dead_letters"])
def test_no_other_stream_has_an_internal_topic(part: str) -> None:
    with pytest.raises(ValueError, match="a topic that Ratchet or Kafka writes for its own use"):
        settings(orders=ORDERS | {part: "shop-repartition.by-user"})
