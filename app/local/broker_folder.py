"""Lock on the folder of an embedded broker, which keeps a second broker out.

Kafka's own lock is too late for that: a second broker writes to the metadata log before it takes Kafka's lock. The
broker that runs in the folder then ends because of the corrupt log.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from kafka_ratchet.errors import SetupError


@contextmanager
def broker_folder(folder: Path, wait_s: float) -> Iterator[IO[str]]:
    """Create the broker's folder, and lock it until the block and all child processes have ended.

    Args:
        folder: folder of the broker.
        wait_s: maximum seconds to wait for another broker's lock; the broker of a killed parent may still be shutting
            down.

    Yields:
        the locked file, which contains the owner's process id.

    Raises:
        SetupError: another broker runs in the folder, or the folder cannot be used.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "broker.lock").open("a+")
    except OSError as error:
        raise SetupError(
            f"the broker's folder {folder} cannot be used: {error}. Name another folder with --folder"
        ) from error
    with lock:
        deadline = time.monotonic() + wait_s
        while not _is_taken(lock):
            lock.seek(0)
            owner = lock.read().strip()
            if _is_alive(owner) or time.monotonic() > deadline:
                raise SetupError(
                    f"the broker's folder {folder} is in use: the broker of process {owner or 'unknown'} runs in it. "
                    "Use that broker, stop it, or name another folder with --folder"
                )
            time.sleep(0.05)
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield lock


def _is_taken(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:  # another user's process
        return True
    return True
