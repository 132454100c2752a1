"""Schema registries for tests: one of ours, which answers as the documented REST API does, and Apicurio's where it is.

Apicurio's is a jar of Maven Central (io.apicurio:apicurio-registry-app:2.6.13.Final, -all.tar.gz, 142 MB), so that the
default tests do not fetch it: RATCHET_APICURIO names the unpacked apicurio-registry-app-2.6.13.Final-runner.jar.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from urllib.request import urlopen

APICURIO = os.environ.get("RATCHET_APICURIO")


class OurRegistry:
    """Schemas by id and by subject, and the ways in which a registry fails."""

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.asked: list[str] = []
        """Paths of all requests."""
        self.fails_with: int | None = None
        """Status of every answer; None: it answers as it should."""
        self.credentials: str | None = None
        """user:password that it wants."""
        self._port = 0
        self._server: ThreadingHTTPServer | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Answer, at the same address each time."""
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(None)

            def do_POST(self) -> None:
                self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _answer(self, body: Any) -> None:
                wanted = registry.credentials
                given = base64.b64encode((wanted or "").encode()).decode()
                if wanted is not None and self.headers.get("Authorization") != f"Basic {given}":
                    status, found = 401, {"error_code": 401, "message": "Unauthorized"}
                else:
                    status, found = registry.answer(self.path, body)
                text = json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        server.daemon_threads = True
        self._server, self._port = server, server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        """No longer answer: connections are refused."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def answer(self, target: str, body: Any) -> tuple[int, Any]:
        """Status and JSON of a request."""
        self.asked.append(target)
        path = [unquote(part) for part in urlsplit(target).path.strip("/").split("/")]
        if self.fails_with is not None:
            return self.fails_with, {"error_code": self.fails_with, "message": "it fails"}
        if path == ["schemas", "types"]:
            return 200, ["JSON", "PROTOBUF", "AVRO"]
        if path[:2] == ["schemas", "ids"] and len(path) == 3:
            assert set(parse_qs(urlsplit(target).query)) <= {"subject", "format"}
            found = self.schemas.get(int(path[2]))
            return (200, found) if found else (404, {"error_code": 40403, "message": "Schema not found"})
        if path[:2] == ["schemas", "guids"]:
            for found in self.schemas.values():
                if found["guid"] == path[2]:
                    return 200, found
            return 404, {"error_code": 40403, "message": "Schema not found"}
        if path[0] == "subjects" and len(path) == 2 and body is not None:
            for version, number in enumerate(self.subjects.get(path[1], []), 1):
                if self.schemas[number]["schema"] == body["schema"]:
                    return 200, self._registered(path[1], version, number)
            return 404, {"error_code": 40403, "message": "Schema not found"}
        if path[0] == "subjects" and path[2:] == ["versions"] and body is not None:
            return 200, self._register(path[1], body)
        if path[0] == "subjects" and path[2:3] == ["versions"]:
            versions = self.subjects.get(path[1])
            if not versions:
                return 404, {"error_code": 40401, "message": f"Subject '{path[1]}' not found."}
            version = len(versions) if path[3] == "latest" else int(path[3])
            if version > len(versions):
                return 404, {"error_code": 40402, "message": "Version not found."}
            return 200, self._registered(path[1], version, versions[version - 1])
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _register(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        kept = {name: body[name] for name in ("schema", "schemaType", "references", "ruleSet") if body.get(name)}
        guid = str(uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(kept, sort_keys=True)))
        number = next((n for n, each in self.schemas.items() if each["guid"] == guid), None)
        if number is None:
            number = 100_000 + len(self.schemas)
            self.schemas[number] = {**kept, "guid": guid}
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return self._registered(subject, versions.index(number) + 1, number)

    def _registered(self, subject: str, version: int, number: int) -> dict[str, Any]:
        return {"subject": subject, "version": version, "id": number, **self.schemas[number]}


@contextmanager
def apicurio(folder: Path) -> Iterator[str]:
    """A registry of Apicurio's, which keeps its schemas in memory; yields its address for Confluent's clients."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["java", "-Xmx300m", f"-Dquarkus.http.port={port}", "-Dquarkus.http.host=127.0.0.1", "-jar", str(APICURIO)]
    with (folder / "apicurio.log").open("wb") as log:
        server = subprocess.Popen(words, stdout=log, stderr=log, cwd=folder)
        try:
            url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
            deadline = time.monotonic() + 120
            while True:
                try:
                    urlopen(f"{url}/schemas/types", timeout=5).close()  # noqa: S310
                    break
                except OSError:
                    assert server.poll() is None, (folder / "apicurio.log").read_text()
                    assert time.monotonic() < deadline, "Apicurio does not start"
                    time.sleep(0.2)
            yield url
        finally:
            server.kill()
            server.wait()
