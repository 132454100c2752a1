"""An S3 of its own, on a free port of 127.0.0.1, which it prints: `python s3_server.py [deaf]`.

moto looks whether an object is there and then puts it, in two steps: of four conditional puts of one key at a time, two
went through once in 1,500. Requests are served one by one here, which makes the two steps one.

A put to /rival/KEY is kept back until somebody puts KEY, and then takes place just before that. A writer who looks
first and puts afterwards cannot see it coming. `deaf` takes no notice of conditions.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server


def main() -> None:
    serve: Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
    serve = DomainDispatcherApplication(create_backend_app)
    rivals: dict[str, bytes] = {}

    def served(environment: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environment["PATH_INFO"]
        if path.startswith("/rival/"):
            rivals[path.removeprefix("/rival")] = environment["wsgi.input"].read(int(environment["CONTENT_LENGTH"]))
            start("200 OK", [])
            return []
        unconditional = {name: value for name, value in environment.items() if name != "HTTP_IF_NONE_MATCH"}
        if environment["REQUEST_METHOD"] == "PUT" and path in rivals:
            body = rivals.pop(path)
            rival = {**unconditional, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
            b"".join(serve(rival, lambda *_: None))
        found: Iterable[bytes] = serve(unconditional if sys.argv[1:] == ["deaf"] else environment, start)
        return found

    server = make_server("127.0.0.1", 0, served)
    print(server.port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
