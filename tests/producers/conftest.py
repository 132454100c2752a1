"""Files of the tests of producers/."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.producers.written_files import WAYS, Write


@pytest.fixture(params=WAYS)
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Write:
    suffix, compressed = WAYS[request.param]

    def to(name: str, content: bytes) -> Path:
        path = tmp_path / (name + suffix)
        path.write_bytes(compressed(content))
        return path

    return to
