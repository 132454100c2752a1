"""Result tables for tests of the job.

The job does the same with each store, and the stores have tests of their own. So the default has one kind, the matrix
another one, and `./ratchet test --all` every kind.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark_sink.conftest import make_site
from tests.spark_sink.sites import AT_LENGTH, LOCAL, SERVED, Site, param

IN_MATRIX = ("delta", "postgres")
KINDS = [param(kind, by_default=kind == "delta") for kind in IN_MATRIX]
REST = [param(kind, by_default=False, tier=pytest.mark.long) for kind in (*LOCAL, *SERVED) if kind not in IN_MATRIX]


@pytest.fixture(params=[*KINDS, *REST, *AT_LENGTH])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    """A result table of each kind."""
    return make_site(request, tmp_path)
