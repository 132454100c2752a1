"""A small OpenID server for tests: it gives a token to whoever knows the secret, and tells the key to check it by."""

from __future__ import annotations

import base64
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

CLIENT, SECRET = "till", "a secret of the till"


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class TokenServer:
    """Token server on 127.0.0.1. `lasts_s`: lifetime of its tokens; `asked`: number of tokens given."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(65537, 2048)
        self.lasts_s = 300.0
        self.asked = 0
        self.refuses = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> TokenServer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def token(self, lasts_s: float, subject: str = CLIENT) -> str:
        """One that ends so many seconds from now."""
        now = time.time()
        claims = {"sub": subject, "iat": int(now) - 60, "exp": int(now + lasts_s), "scope": "kafka", "aud": "kafka"}
        parts = ({"alg": "RS256", "typ": "JWT", "kid": "1"}, claims)
        signed = ".".join(_text(json.dumps(part).encode()) for part in parts)
        return f"{signed}.{_text(self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"

    @property
    def keys(self) -> dict[str, Any]:
        """The JWKS document."""
        numbers = self._key.public_key().public_numbers()
        n, e = (_text(value.to_bytes((value.bit_length() + 7) // 8)) for value in (numbers.n, numbers.e))
        return {"keys": [{"kty": "RSA", "kid": "1", "use": "sig", "alg": "RS256", "n": n, "e": e}]}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(200, server.keys)

            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                known = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
                if server.refuses or self.headers["Authorization"] != f"Basic {known}":
                    self._answer(401, {"error": "invalid_client", "error_description": "no such client or secret"})
                    return
                assert form["grant_type"] == ["client_credentials"], form
                server.asked += 1
                given = {"access_token": server.token(server.lasts_s), "expires_in": int(server.lasts_s)}
                self._answer(200, {**given, "token_type": "Bearer", "scope": "kafka"})

            def _answer(self, status: int, document: dict[str, Any]) -> None:
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        return Handler
