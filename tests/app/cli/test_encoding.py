"""Output that is not UTF-8."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_output_that_is_no_utf8_does_not_end_a_command() -> None:
    code = """
import sys
from kafka_ratchet.app import cli

cli.run = lambda: print("\\u043a\\u043b\\u044e\\u0447 \\udcff") or 0
cli.main()
"""
    environment = {**os.environ, "PYTHONIOENCODING": "ascii:strict", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "\\u043a\\u043b\\u044e\\u0447 \\udcff\n"), done.stderr
