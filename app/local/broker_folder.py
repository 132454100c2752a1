"""A lock on the embedded broker's folder: two brokers must not use it at once.

Kafka opens its metadata log before it takes a lock of its own: a second broker in the folder writes into it, and the
one that runs there dies of a corrupt log.
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
    """Make the broker's folder, and lock it until the block and all child processes have ended.

    Args:
        folder: folder of the broker.
        wait_s: how long to wait for the shutdown of a broker after its parent was killed.

    Yields:
        the locked file, which contains the owner's process id.

    Raises:
        SetupError: another broker runs there, or the folder cannot be used.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "broker.lock").open("a+")
    except OSError as error:
        raise SetupError(
            f"the broker's folder {folder} cannot be used: {error}. Name another folder (--folder)"
        ) from error
    with lock:
        deadline = time.monotonic() + wait_s
        while not _is_taken(lock):
            lock.seek(0)
            owner = lock.read().strip()
            if _is_alive(owner) or time.monotonic() > deadline:
                raise SetupError(
                    f"the broker's folder {folder} is in use: the broker of process {owner or 'unknown'} runs there. "
                    "Use that one, stop it first, or give another folder (--folder)"
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
