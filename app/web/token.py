"""Token of the page, and the sessions and form marks derived from the token.

A session is a text `expires.random.signature`, signed with a key derived from the token. The page stores no
sessions. So several pages with the same token accept each other's sessions, and a new token ends all sessions.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kafka_ratchet.errors import SettingsError
from kafka_ratchet.spark_sink.secrets import keep

LEAST, MOST = 16, 1_024
"""Minimum and maximum number of characters of a token. A shorter one could be guessed; a longer text is no token."""
SESSION_S: Final = 12 * 3600
"""Validity of a session in seconds: a working day."""


class Token:
    """Token, with sessions and form marks derived from it.

    Args:
        text: the token itself.
        app: name of the application. Its sessions are invalid for other applications with the same token.
        clock: function that returns the seconds since 1970.
    """

    def __init__(self, text: str, app: str, clock: Callable[[], float] = time.time) -> None:
        self._text = text.encode()
        self._clock = clock
        self._key = hmac.digest(self._text, f"ratchet page {app}".encode(), "sha256")
        # Browsers send a cookie to all ports of a host: pages of two applications must not take each other's away.
        self.cookie: Final = f"ratchet_session_{self._sign('cookie')[:8]}"

    def is_(self, given: str) -> bool:
        """Return True if the text `given` is this token. The time of the comparison does not depend on the text."""
        return hmac.compare_digest(given.encode(errors="surrogatepass"), self._text)

    def new_session(self) -> str:
        """Return a new session, valid for `SESSION_S`, as the value of a cookie."""
        body = f"{int(self._clock()) + SESSION_S}.{secrets.token_hex(16)}"
        return f"{body}.{self._sign('session ' + body)}"

    def has_session(self, value: str) -> bool:
        """Return True if a cookie's value is an unexpired session of this token."""
        body, _, signature = value.rpartition(".")
        if not self._same(signature, self._sign("session " + body)):
            return False
        return int(body.partition(".")[0]) > self._clock()

    def form_mark(self, session: str) -> str:
        """Return the mark for the forms of a session; other sites cannot know it."""
        return self._sign("form " + session)

    def has_form_mark(self, session: str, given: str) -> bool:
        """Return True if the mark `given` is the mark for the forms of the session."""
        return self._same(given, self.form_mark(session))

    def _sign(self, text: str) -> str:
        return hmac.digest(self._key, text.encode(errors="surrogatepass"), "sha256").hex()

    @staticmethod
    def _same(given: str, expected: str) -> bool:
        return hmac.compare_digest(given.encode(errors="surrogatepass"), expected.encode())


def read_token(path: Path, app: str) -> Token:
    """Read the token from a file, without whitespace around it.

    Raises:
        SettingsError: the file cannot be read, other users may read it, or it contains no token.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read(MOST + 64)
    except OSError as error:
        raise SettingsError(f"web.token_file: {path} cannot be read: {error.strerror}") from None
    if mode & 0o027:
        raise SettingsError(
            f"web.token_file: other users of this machine may read or write {path} (mode {mode:04o}). "
            f"Run: chmod 600 {path}"
        )
    text = content.strip().decode("ascii", "replace")
    if not LEAST <= len(text) <= MOST or not all("!" <= letter <= "~" for letter in text):
        raise SettingsError(
            f"web.token_file: {path} has no token: {LEAST} to {MOST:,} printable ASCII characters without a space. "
            f"Make one: (umask 077; openssl rand -hex 32 > {path})"
        )
    keep([text])
    return Token(text, app)
