"""Child processes for Ratchet's own commands, each with a log; they end with the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kafka_ratchet.app.local import supervisor
from kafka_ratchet.errors import SetupError

STOP_LIMIT_S: Final = 180.0
"""Seconds from SIGTERM until `ChildProcess.stop` kills the process.

A worker ends itself earlier, and logs the reason (kafka_ratchet.app.worker.process.STOP_WITHIN_S).
"""


class ChildProcess:
    """Running child process of a `ratchet` command, or of another Python module."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *arguments: str,
        module: str = "kafka_ratchet",
        environment: Mapping[str, str | None] | None = None,
    ) -> None:
        """Start the process; its output goes to FOLDER/NAME.log.

        Args:
            folder: folder of the log.
            name: name of the log, and of the process in messages.
            arguments: the command and its options.
            module: module that `python -m` runs.
            environment: variables to set for the process; a variable of value None is removed.

        Raises:
            SetupError: the process could not be started.
        """
        self.name, self.log = name, folder / f"{name}.log"
        command = [sys.executable, "-m", module, *arguments]
        variables = {**os.environ, **(environment or {})}
        root = str(Path(__file__).parents[3])
        variables["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [variables.get("PYTHONPATH")])])
        with self.log.open("ab") as log:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-I", supervisor.__file__, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={name: value for name, value in variables.items() if value is not None},
                text=True,
                start_new_session=True,
            )
        assert self._supervisor.stdout is not None  # noqa: S101 - asked for above
        pid = self._supervisor.stdout.readline().strip()
        if not pid:
            raise SetupError(f"{name} could not be started: {self.last_words()}")
        self.pid = int(pid)

    def wait(self) -> int:
        """Wait until the process ends.

        Returns:
            exit code; 128 + the signal's number if a signal ended the process
        """
        code = self._supervisor.wait()
        for stream in (self._supervisor.stdin, self._supervisor.stdout):
            if stream is not None:
                stream.close()
        return code

    @property
    def is_running(self) -> bool:
        """Return True until the process has ended."""
        return self._supervisor.poll() is None

    def kill(self) -> None:
        """Kill the process by SIGKILL, and wait for its end."""
        self._supervisor.send_signal(
            signal.SIGUSR1
        )  # the supervisor kills, as it knows whether the process is still there
        self.wait()

    def freeze(self) -> None:
        """Suspend the process by SIGSTOP, until `thaw`."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume the suspended process by SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> int:
        """Stop the process by SIGTERM, and wait for its end.

        Returns:
            exit code, as in `wait`

        Raises:
            SetupError: the process did not end in time, and was killed.
        """
        self._supervisor.terminate()
        try:
            self._supervisor.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            said = f"{self.name} had not ended {STOP_LIMIT_S:.0f} s after SIGTERM, and was killed:\n{self.last_words()}"
            raise SetupError(said) from None
        return self.wait()

    def output(self) -> str:
        """Return the text that the process has written to standard output and standard error so far."""
        return self.log.read_text("utf-8", "replace")

    def last_words(self) -> str:
        """Return the last lines of the log, and the path of the log file."""
        return "\n".join([*self.output().splitlines()[-15:], f"(log: {self.log})"])

    def finish(self) -> str:
        """Wait until the process ends, and require that it succeeded.

        Returns:
            output of the process

        Raises:
            SetupError: the process failed.
        """
        code = self.wait()
        if code:
            raise SetupError(f"{self.name} ended with code {code}:\n{self.last_words()}")
        return self.output()
