"""The MySQL store behind proxies: one that passes sessions through works, one with sessions of its own is refused."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from faults.mariadb import MariadbServer
from faults.proxy import Proxy
from kafka_ratchet.spark_sink.errors import StoreError
from kafka_ratchet.spark_sink.stores.mysql.connection import execute, read_url, session


def numbered_anew(greeting: bytes) -> bytes:
    """Return the server's first packet with another number of the session, as poolers send it."""
    at = greeting.index(b"\0", 5) + 1  # behind length, sequence, protocol and version
    [number] = struct.unpack_from("<I", greeting, at)
    return greeting[:at] + struct.pack("<I", number + 100_000) + greeting[at + 4 :]


def pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@pytest.fixture
def pooler(mariadb: MariadbServer) -> Iterator[int]:
    """Port of a proxy that greets with session numbers of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            client, _ = listening.accept()
            with client, socket.create_connection(("127.0.0.1", mariadb.port)) as server:
                client.sendall(numbered_anew(server.recv(1 << 16)))
                back = threading.Thread(target=pass_on, args=(server, client))
                back.start()
                pass_on(client, server)
                back.join()

        listening.settimeout(60)  # a test that fails before it connects ends too
        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        yield listening.getsockname()[1]
        serving.join(60)


def url(mariadb: MariadbServer, port: int) -> str:
    return f"mysql://{mariadb.user}@127.0.0.1:{port}/results"


def test_a_pooler_is_refused_by_name(mariadb: MariadbServer, pooler: int) -> None:
    address = read_url(url(mariadb, pooler), mariadb.password)
    with pytest.raises(StoreError, match=r"leads to a pooler \(ProxySQL, MaxScale"), session(address):
        pass


def test_a_proxy_that_passes_connections_through_is_none(mariadb: MariadbServer) -> None:
    proxy = Proxy(mariadb.port)
    try:
        with session(read_url(url(mariadb, proxy.port), mariadb.password)) as (database, _):
            assert execute(database, "SELECT 1") == [(1,)]
    finally:
        proxy.close()
