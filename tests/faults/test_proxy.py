"""The network between a worker and a broker, with sockets of our own at both ends."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from faults.proxy import Line, Proxy


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that says back what it hears."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve(connection: socket.socket) -> None:
            with connection:
                try:
                    while data := connection.recv(1024):
                        connection.sendall(data)
                except OSError:
                    return  # the proxy resets connections, that is what it is for

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return  # the server is closed: the test is over
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(echo: int) -> Iterator[Proxy]:
    proxy = Proxy(echo, delay_s=0.05)
    yield proxy
    proxy.close()


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=60)


def said_back(connection: socket.socket, words: bytes) -> bytes:
    connection.sendall(words)
    heard = b""
    while len(heard) < len(words):
        piece = connection.recv(1024)
        assert piece, "closed"
        heard += piece
    return heard


@pytest.mark.parametrize("line", [Line.OPEN, Line.DELAYED])
def test_what_goes_in_comes_out(proxy: Proxy, line: Line) -> None:
    proxy.line = line
    with connect(proxy) as connection:
        assert said_back(connection, b"one") == b"one"
        assert said_back(connection, b"two") == b"two"


def test_silence_holds_everything_back_and_loses_nothing(proxy: Proxy) -> None:
    with connect(proxy) as connection:
        assert said_back(connection, b"before") == b"before"
        proxy.line = Line.SILENT
        connection.sendall(b"meanwhile")
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(1024)
        connection.settimeout(60)
        proxy.line = Line.OPEN
        assert connection.recv(1024) == b"meanwhile"


def test_a_cut_resets_connections_and_refuses_new_ones_until_it_is_mended(proxy: Proxy) -> None:
    with connect(proxy) as connection:
        assert said_back(connection, b"before") == b"before"
        proxy.line = Line.CUT
        with pytest.raises(ConnectionResetError):
            connection.recv(1024)
    # The reset may already be there when connect() looks.
    with pytest.raises(ConnectionResetError), connect(proxy) as connection:
        connection.recv(1024)
    proxy.line = Line.OPEN
    with connect(proxy) as connection:
        assert said_back(connection, b"after") == b"after"


def test_what_a_held_connection_has_said_arrives_after_its_client_has_gone(proxy: Proxy) -> None:
    with connect(proxy) as connection:
        assert said_back(connection, b"before") == b"before"
        proxy.hold()
        connection.sendall(b"late")
    with connect(proxy) as other:
        assert said_back(other, b"meanwhile") == b"meanwhile"
    assert proxy.answers == 0
    proxy.release()
    deadline = time.monotonic() + 60
    while proxy.answers == 0:
        assert time.monotonic() < deadline
        time.sleep(0.01)
