"""The line between a user's program and libraries, by which tables are found and errors name a line."""

from __future__ import annotations

import importlib
import json
import sys
import sysconfig
from pathlib import Path
from typing import Any

import faust
import pytest

from kafka_ratchet.app.faust_host import refusals, transport
from kafka_ratchet.app.faust_host.command import load_app
from kafka_ratchet.app.faust_host.inputs import sources_of, tables_of
from kafka_ratchet.app.faust_host.refusals import add_program, is_library
from kafka_ratchet.app.faust_host.transport import hosted_app, prepare_changelogs, refuse_other_partitions
from kafka_ratchet.errors import PartitionsDiffer, SettingsError, TopicError
from kafka_ratchet.testing.program_run import run

SITE = sysconfig.get_path("purelib")

PROGRAM = """import faust
app = faust.App("shop", broker="kafka://127.0.0.1:1")
counts = app.Table("counts", default=int)
def add(word):
    counts[word] += 1
@app.agent(app.topic("words"))
async def count(words):
    async for word in words:
        add(word)
"""


@pytest.mark.parametrize(
    "path",
    [
        "/home/ann/kafka_ratchet_demo/shop.py",
        "/home/ann/kafka_ratchet/shop.py",
        "/home/ann/my-site-packages/shop.py",
        f"{Path(str(sys.modules['asyncio'].__file__)).parents[1]}-of-mine/shop.py",
        f"{SITE}-of-mine/shop.py",
    ],
)
def test_a_folder_of_the_user_is_no_library(path: str) -> None:
    assert not is_library(path)


@pytest.mark.parametrize(
    "path",
    [
        f"{SITE}/yarl/_url.py",
        str(faust.__file__),
        str(refusals.__file__),
        str(sys.modules["asyncio"].__file__),
        "<frozen importlib._bootstrap>",
    ],
)
def test_libraries_are_known(path: str) -> None:
    assert is_library(path)


def test_an_installed_program_is_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "_PROGRAMS", set())
    add_program([Path(f"{SITE}/shop_of_ann/agents.py"), Path(f"{SITE}/shop_of_bob.py")])
    assert not is_library(f"{SITE}/shop_of_ann/tables/counts.py")
    assert not is_library(f"{SITE}/shop_of_bob.py")
    assert is_library(f"{SITE}/shop_of_ann_too/agents.py")


def test_tables_of_an_installed_program_are_found_through_its_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "kafka_ratchet" / "site-packages"
    site.mkdir(parents=True)
    (site / "installed_shop.py").write_text(PROGRAM, "utf-8")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(refusals, "_PROGRAMS", set())
    monkeypatch.setattr(refusals, "_LIBRARIES", (*refusals._LIBRARIES, f"{site}/"))
    app = load_app("installed_shop:app")
    (agent,) = app.agents.values()
    assert tables_of(agent.fun) == set()
    add_program(sources_of(app))
    assert [table.name for table in tables_of(agent.fun)] == ["counts"]


def test_an_error_while_a_module_loads_is_not_called_a_missing_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_shop.py").write_text("import sys\nsys.nothing_of_that_name\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SettingsError, match=r"--faust broken_shop:app: .* cannot be imported: AttributeError"):
        load_app("broken_shop:app")


PACKAGE = {
    "__init__.py": """import faust
app = faust.App("found_shop", broker="kafka://127.0.0.1:1", autodiscover=True{origin})
first = app.Table("first", default=int)
ready = []
@app.on_worker_init.connect
def note(app, **options):
    ready.append(sorted(app.tables))
@app.agent(app.topic("words"))
async def count(words):
    async for word in words:
        first[word] += 1
""",
    "more.py": """from {name} import app
second = app.Table("second", default=int)
@app.agent(app.topic("more"))
async def count_more(words):
    async for word in words:
        second[word] += 1
""",
}


def package(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, origin: str = "") -> None:
    (folder / name).mkdir()
    for file, text in PACKAGE.items():
        filled = text.replace("{origin}", origin).replace("{name}", name)
        (folder / name / file).write_text(filled, "utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))


def test_the_modules_that_an_app_discovers_are_loaded_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package("found_shop", tmp_path, monkeypatch)
    app = load_app("found_shop:app")
    hosted, _ = hosted_app(app)
    assert sorted(hosted.stores) == ["first", "second"]
    assert load_app("found_shop:app") is app
    assert sys.modules["found_shop"].ready == [["first", "second"]]


def test_a_run_in_memory_discovers_modules_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package("run_shop", tmp_path, monkeypatch, ', origin="run_shop"')
    ran = run(importlib.import_module("run_shop").app, {"more": ["a", "a"]})
    assert ran.tables == {"first": {}, "second": {"a": 2}}


@pytest.mark.parametrize(("given", "said"), [('["no_such_module"]', "no_such_module"), ("True", "`origin`")])
def test_a_discovery_that_fails_names_the_settings(given: str, said: str) -> None:
    app = faust.App("shop", broker="kafka://127.0.0.1:1", autodiscover=json.loads(given.lower()))
    with pytest.raises(SettingsError, match=rf"Faust app shop: autodiscover failed: .*{said}.* in origin="):
        run(app, {})


def meeting() -> tuple[Any, Any]:
    """Two topics and a step that share a table; two topics that only share a global one."""
    app = faust.App("meeting", broker="ratchet://127.0.0.1:9", store="ratchet://", autodiscover=False)
    totals, seen, rates = app.Table("totals"), app.Table("seen"), app.GlobalTable("rates")

    @app.agent(app.topic("one"))
    async def first(stream: Any) -> None:
        async for _ in stream:
            totals["x"] = seen.get("x")

    @app.agent(app.topic("two"))
    async def second(stream: Any) -> None:
        async for value in stream.group_by(lambda value: value, name="itself"):
            totals["x"] = rates[value]

    @app.agent(app.topic("three"))
    async def third(stream: Any) -> None:
        async for value in stream:
            rates.get(value)

    return hosted_app(app)


def test_topics_that_meet_in_a_table_have_one_partition_count() -> None:
    hosted, settings = meeting()
    refuse_other_partitions(hosted, settings, {"one": 8, "two": 8, "three": 1})
    with pytest.raises(PartitionsDiffer) as error:
        refuse_other_partitions(hosted, settings, {"one": 1, "two": 8, "three": 1})
    assert str(error.value) == (
        "table totals: agents write it from topics with different partition counts "
        "(meeting-repartition.tests-app-faust_host-test_refusals-second-itself has 8, one has 1), so that a key would "
        "have a value of its own for each topic. Create the topics with the same number of partitions"
    )
    with pytest.raises(PartitionsDiffer, match="one has 4"):  # "two" is to be created, with Faust's eight
        refuse_other_partitions(hosted, settings, {"one": 4})


def with_changelogs(monkeypatch: pytest.MonkeyPatch, policies: dict[str, str], **options: Any) -> dict[str, Any]:
    """Prepare the changelogs of two tables, and return the configurations of the created topics.

    policies: cleanup.policy of each existing topic; options: of the program's changelog topics
    """
    app = faust.App("logged", broker="ratchet://127.0.0.1:9", store="ratchet://", autodiscover=False)
    members = app.SetTable("members", changelog_topic=app.topic("members-log", **options))
    totals = app.Table("totals", changelog_topic=app.topic("totals-log", **options))

    @app.agent(app.topic("one"))
    async def agent(stream: Any) -> None:
        async for value in stream:
            members["x"].add(value)
            totals["x"] = value

    made: dict[str, Any] = {}
    monkeypatch.setattr(transport, "partition_counts", lambda admin, topics: dict.fromkeys(policies, 4))
    monkeypatch.setattr(transport, "config_of", lambda admin, topic: {"cleanup.policy": policies[topic]})
    monkeypatch.setattr(transport, "create", lambda admin, topic, count, copies, config: made.update({topic: config}))
    hosted, settings = hosted_app(app)
    prepare_changelogs(hosted, settings, "127.0.0.1:9")
    return made


def test_a_changelog_of_sets_is_created_without_compaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """All additions to a set have one key, so compaction would keep the last one alone."""
    made = with_changelogs(monkeypatch, {"one": "delete"})
    assert {topic: config["cleanup.policy"] for topic, config in made.items()} == {
        "members-log": "delete",
        "totals-log": "compact",
    }
    assert made["members-log"]["retention.ms"] == "-1"


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_compacted_changelog_of_sets_is_refused(monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    existing = {"one": "delete", "members-log": policy, "totals-log": policy}
    with pytest.raises(TopicError, match=f"^changelog topic members-log: cleanup.policy is {policy}, .* kafka-configs"):
        with_changelogs(monkeypatch, existing)
    assert with_changelogs(monkeypatch, existing | {"members-log": "delete"}) == {}
    with pytest.raises(TopicError, match=r"^changelog topic members-log: .* Leave out compacting=True in the program"):
        with_changelogs(monkeypatch, {"one": "delete"}, compacting=True)


def test_a_changelog_is_created_with_the_options_of_its_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    made = with_changelogs(monkeypatch, {"one": "delete"}, deleting=True, retention=90, config={"segment.ms": 1000})
    for config in made.values():
        assert config.items() >= {"cleanup.policy": "delete", "retention.ms": "90000", "segment.ms": "1000"}.items()
