"""Compiles the passes of publishing, so that the first large file does not wait for it."""

from __future__ import annotations

import numpy as np

from kafka_ratchet.transport.batch.rows import spans
from kafka_ratchet.transport.publishing.encode import Encoder, Records
from kafka_ratchet.transport.publishing.lines import find_lines


def compile_publishing() -> None:
    """Take one record all the way through. Numba keeps the result beside the source or in the user's cache."""
    find_lines(b'{"a":"b"}\n', True, "a")
    Encoder("compile", b"a", 1, 1000, "none").encode(Records(np.arange(1), spans([b"a"]), spans([b"b"])))
