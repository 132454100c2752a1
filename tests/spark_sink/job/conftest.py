"""Result tables for tests of the job.

The job does the same with each store, and the stores have tests of their own. So the default has one kind, CI another
one too, and `./ratchet test --all` every kind.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark_sink.conftest import make_site
from tests.spark_sink.sites import AT_LENGTH, LOCAL, SERVED, Site, param

IN_CI = ("delta", "postgres")
KINDS = [param(kind, by_default=kind == "delta") for kind in IN_CI]
REST = [param(kind, by_default=False, tier=pytest.mark.long) for kind in (*LOCAL, *SERVED) if kind not in IN_CI]


@pytest.fixture(params=[*KINDS, *REST, *AT_LENGTH])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    """A result table of each kind."""
    return make_site(request, tmp_path)
