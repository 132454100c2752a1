"""Faust program in real worker processes on lanes, for its tests."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any

import faust
from confluent_kafka.admin import AdminClient

from kafka_ratchet.agents.program import App
from kafka_ratchet.app.faust_host.command import load_app, use_lanes
from kafka_ratchet.app.faust_host.program import ConvertedProgram, host
from kafka_ratchet.app.faust_host.transport import Transport
from kafka_ratchet.app.faust_host.worker_settings import judged_topics, streams_of
from kafka_ratchet.app.names import repartition_topic
from kafka_ratchet.app.worker.program import load_object
from kafka_ratchet.errors import SettingsError
from kafka_ratchet.testing.program_run import Output, Ran, Record, run
from kafka_ratchet.testing.topics import PATIENCE_S, ends
from kafka_ratchet.testing.worker import QUICK, Worker, merged, mixes


def is_faust(program: str) -> bool:
    """Return True if MODULE:NAME is a Faust app.

    Raises:
        SettingsError: there is no such object.
    """
    return isinstance(load_object(program, "--app"), faust.App)


def hosted_program(program: str, settings: Mapping[str, Any] | None = None) -> tuple[Any, ConvertedProgram]:
    """Return a Faust app, and the program that hosts it.

    Args:
        program: MODULE:NAME of the app.
        settings: settings as in ratchet.toml.

    Raises:
        SettingsError: there is no such app, or it cannot be hosted.
    """
    app = load_app(program)
    if not isinstance(app.transport, Transport):
        use_lanes(app)
    values = settings or {}
    return app, host(app, streams_of(values), judged_topics(values))


class FaustWorker(Worker):
    """Worker of a Faust program, see `Worker`.

    The program determines the app's id and the topics; published streams are named after their topics, which must be
    missing or empty.

    Attributes:
        faust: the Faust app.
        hosted: the program that hosts the app.
    """

    _option = "--faust"
    faust: Any
    hosted: ConvertedProgram

    def __init__(
        self, program: str, *arguments: Any, settings: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        """Prepare the worker without starting it; see `Worker`.

        Raises:
            SettingsError: there is no such program, it cannot be hosted, or a topic has records already.
        """
        self._given = settings or {}
        super().__init__(program, *arguments, settings=settings, **options)

    @classmethod
    def check_program(cls, program: str, partitions: int) -> None:
        """Refuse a program if `run` and a worker may give different results; see `Worker.check_program`."""
        _, hosted = hosted_program(program)
        mixed = [name for name, stream in hosted.engine.streams.items() if stream.topic is not None]
        mixed += [name for name, topic in hosted.inputs.items() if topic in hosted.engine.topics]
        if mixed and partitions > 1:
            raise mixes(mixed[0])

    def _load(self, program: str) -> App:
        self.faust, self.hosted = hosted_program(program, self._given)
        return self.hosted.engine

    def _name_app(self, text: str) -> str:
        return str(self.faust.conf.id)

    def _settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        mine = {"bootstrap": self.bootstrap, **QUICK, "kafka": {"client.id": f"{self.app}.{self.name}"}}
        return merged(mine, given)

    def _topics(self, chosen: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
        engine = self.hosted.engine
        inputs = {topic: {"input": topic} for topic in self.hosted.inputs.values()}
        # Agents may send to topics that others read: their transactions have markers, as those of internal streams.
        steps = {topic: {"input": topic} for topic in inputs if topic in engine.topics} | {
            name: {"input": repartition_topic(self.app, name)}
            for name, stream in engine.streams.items()
            if stream.topic is not None
        }
        return inputs, steps

    def _create_inputs(self) -> None:
        there = AdminClient({"bootstrap.servers": self.bootstrap}).list_topics(timeout=PATIENCE_S).topics
        for topic in self._inputs:
            if topic in there and ends(self.bootstrap, topic):
                raise SettingsError(
                    f"topic {topic} has records already, and the Faust program reads it from its beginning. Give the "
                    "test a Kafka of its own"
                )
        super()._create_inputs()

    def _environment(self) -> dict[str, str]:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            return {"WEB_PORT": str(found.getsockname()[1])}

    def repeats(self, stream: str) -> int:
        """Return how often `assert_once` sends each record: twice to a deduplicated stream, else once."""
        return 2 if stream in judged_topics(self._given) else 1

    def expected(self, published: Mapping[str, Sequence[Record]]) -> Ran:
        """Return the result of `run` on these events, with dead letters named as the worker names them."""
        ran = run(self.faust, published)
        # `run` knows no settings, which may give a stream another name.
        names = {topic: name for name, topic in self.hosted.inputs.items()}
        letters = {
            f"{name}-dead-letters": f"{names[topic]}-dead-letters" for name, topic in host(self.faust).inputs.items()
        }
        return ran._replace(outputs=[each._replace(topic=letters.get(each.topic, each.topic)) for each in ran.outputs])

    @property
    def sent_topics(self) -> list[str]:
        """Return the topics that agents send to; see `Worker.sent_topics`."""
        return [topic for topic in self.hosted.engine.topics if topic not in self.hosted.inputs.values()]

    def outputs(self) -> list[list[Output]]:
        """Return the committed dead letters, by partition; `sent` returns all other outputs of a Faust program."""
        found: list[list[Output]] = [[] for _ in range(self.partitions)]
        for stream in self.streams:
            topic = f"{self.app}-{stream}-dead-letters"
            for number, outputs in self.committed(topic, f"{stream}-dead-letters").items():
                found[number] += outputs
        return found

    def tables(self) -> list[dict[str, dict[Any, Any]]]:
        """Return the committed contents of each table, in the program's form; see `Worker.tables`."""
        return [
            {name: store.decoded(found.get(name, {})) for name, store in self.hosted.stores.items()}
            for found in super().tables()
        ]
