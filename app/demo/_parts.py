"""The processes of the demo: each under a guard, so that none outlives it, and each with a log of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from app import _guard
from errors import SetupError


class Part:
    """One `ratchet` command as a process."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        """Start it; its output goes to FOLDER/NAME.log."""
        self.name, self.log = name, folder / f"{name}.log"
        command = [sys.executable, "-m", "app", *arguments]
        root = str(Path(__file__).parents[2])
        search = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        with self.log.open("ab") as log:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", _guard.__file__, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": search},
                text=True,
                start_new_session=True,
            )
        assert self._guard.stdout is not None  # noqa: S101 - asked for above
        pid = self._guard.stdout.readline().strip()
        if not pid:
            raise SetupError(f"{name} could not be started: {self.last_words()}")
        self.pid = int(pid)

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        return self._guard.wait()

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._guard.poll() is None

    def kill(self) -> None:
        """SIGKILL: it gets no chance to say good-bye."""
        os.kill(self.pid, signal.SIGKILL)
        self._guard.wait()

    def stop(self) -> None:
        """SIGTERM, and wait."""
        self._guard.terminate()
        self._guard.wait()

    def output(self) -> str:
        """What it has written so far."""
        return self.log.read_text("utf-8", "replace")

    def last_words(self) -> str:
        """The end of its log, and where the rest is."""
        return "\n".join([*self.output().splitlines()[-15:], f"(log: {self.log})"])

    def finish(self) -> str:
        """Wait until it has done its work.

        Returns:
            its output

        Raises:
            SetupError: it failed.
        """
        code = self.wait()
        if code:
            raise SetupError(f"{self.name} ended with code {code}:\n{self.last_words()}")
        return self.output()
