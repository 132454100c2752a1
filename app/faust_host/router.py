"""Router of a Faust app on lanes: it finds the worker with the lane of a key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from faust.app.router import Router
from faust.exceptions import SameNode
from faust.types import TP
from faust.web.exceptions import ServiceUnavailable
from yarl import URL

from kafka_ratchet.app.partitioner import Partitioner
from kafka_ratchet.app.worker.application import Application


class Route(NamedTuple):
    """Stream with the keys of a table or topic. topic: Faust's topic, which encodes a key."""

    stream: str
    topic: Any


class LaneRouter(Router):
    """Router of a hosted app, which finds the worker with the lane of a key.

    The workers' status addresses give the addresses of their pages.
    """

    def __init__(
        self, app: Any, application: Application, tables: Mapping[str, Route], topics: Mapping[str, Route]
    ) -> None:
        super().__init__(app)
        self._application, self._tables, self._topics = application, tables, topics
        self._pages: dict[str, str] = {}

    async def route_req(self, table_name: str, key: Any, web: Any, request: Any) -> Any:
        """Route a request to the worker with a table's key.

        Raises:
            SameNode: this worker has the partition.
            ServiceUnavailable: no worker has the partition now.
        """
        return await self._to_owner(self._tables.get(table_name), key, web, request)

    async def route_topic_req(self, topic: Any, key: Any, web: Any, request: Any) -> Any:
        """Route a request to the worker that reads a key's partition of a topic.

        Raises:
            SameNode: this worker has the partition.
            ServiceUnavailable: no worker has the partition now.
        """
        return await self._to_owner(self._topics.get(topic.get_topic_name()), key, web, request)

    async def _to_owner(self, route: Route | None, key: Any, web: Any, request: Any) -> Any:
        if route is None:
            raise ServiceUnavailable()
        topics = self._application.streams[route.stream].topics
        data = route.topic.prepare_key(key, None)[0]
        number = Partitioner.MURMUR2.place(data, topics.partitions)
        if (topics.changelog, number) in self._application.lanes.running:
            raise SameNode
        status = self._application.app.assignor._tps_url.get(TP(topics.changelog, number))
        if status is None:
            raise ServiceUnavailable()
        return await self._route_req(URL(await self._pages_of(str(status))), web, request)

    async def _pages_of(self, status: str) -> str:
        """Return the address of a worker's pages, given its status address."""
        if status not in self._pages:
            try:
                async with self.app.http_client.get(f"{status.rstrip('/')}/status/pages") as answer:
                    self._pages[status] = (await answer.json())["url"]
            except Exception as error:
                raise ServiceUnavailable() from error
        return self._pages[status]
