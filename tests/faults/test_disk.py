"""The full disk where no small one can be mounted: whoever runs the faults is not root, or may not mount."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE_S = 600
PR_CAPBSET_DROP, CAP_SYS_ADMIN = 24, 21
"""prctl(2), capabilities(7): what this process and those it starts may not do again, to mount a disk among it."""

SCENE = """
import sys
from pathlib import Path
from faults.disk import SmallDisk
from faults.scenarios import full_disk_of_a_worker

folder = Path(sys.argv[1])
assert not SmallDisk(folder / "probe", 1 << 20).is_mounted
difference, events = full_disk_of_a_worker(folder / "scenario", 1, 1)
print(difference.lost, difference.doubled, difference.reordered, events > 0)
"""


def _may_not_mount() -> None:
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0)  # refused to those who may not mount anyway


@pytest.mark.matrix  # a broker of its own and a fault run
def test_a_workers_full_disk_without_one_of_its_own(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCENE, str(tmp_path)],
        cwd=ROOT,
        preexec_fn=_may_not_mount,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    assert done.stdout.split() == ["0", "0", "0", "True"]
