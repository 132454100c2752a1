"""Docker's command line on this machine: why the stack cannot be tested here, and questions to containers."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from typing import Any, Final

API_LEAST: Final = (1, 44)
"""Engine 25's: start_interval of a health check."""
COMPOSE_LEAST: Final = (2, 24)
PATIENCE_S: Final = 900.0
"""Limit of a wait for a fact, on a machine at load 40."""


def docker(*arguments: str, check: bool = True) -> str:
    """Run a command of Docker and return its standard output."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise AssertionError(f"docker {' '.join(arguments)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def absence() -> str | None:
    """Return why the stack cannot run on this machine; None: it can."""
    try:
        api = docker("version", "--format", "{{.Server.APIVersion}}", check=False).strip()
        compose = docker("compose", "version", "--short", check=False).strip().removeprefix("v")
    except FileNotFoundError:
        return "there is no docker command"
    if not api:
        return "no Docker engine answers"
    if tuple(map(int, api.split("."))) < API_LEAST:
        return f"the Docker engine speaks API {api}; start_interval needs 1.44, which Engine 25 brought"
    if not compose:
        return "there is no docker compose"
    numbers = tuple(int(part) for part in compose.split(".")[:2] if part.isdigit())
    if len(numbers) == 2 and numbers < COMPOSE_LEAST:
        return f"Docker Compose is {compose}; the stack needs {'.'.join(map(str, COMPOSE_LEAST))}"
    return None


def inspect(container: str) -> dict[str, Any]:
    """Return the engine's record of a container."""
    found: dict[str, Any] = json.loads(docker("container", "inspect", container))[0]
    return found


def is_local(image: str) -> bool:
    """Return whether the engine has an image."""
    return bool(docker("image", "inspect", "--format", "{{.Id}}", image, check=False).strip())


def health(container: str) -> str:
    """Return the state of a container, or of its health check where it has one."""
    state = inspect(container)["State"]
    return str(state.get("Health", {}).get("Status", state["Status"]))


def kill(container: str, image: str) -> None:
    """Kill the first process of a container as the kernel does when memory is short.

    `docker kill` would be an order of the operator, after which no restart policy starts the container again.
    """
    pid = str(inspect(container)["State"]["Pid"])
    order = "import os, sys; os.kill(int(sys.argv[1]), 9)"
    privileged = ("run", "--rm", "--privileged", "--pid=host", "--user=0", "--entrypoint=python")
    docker(*privileged, image, "-c", order, pid)


def wait_for(condition: Callable[[], bool], what: str, limit_s: float = PATIENCE_S) -> float:
    """Wait until a fact is true; return the seconds that took.

    Raises:
        AssertionError: it was not within `limit_s`.
    """
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > limit_s:
            raise AssertionError(f"after {limit_s:g} s: not {what}")
        time.sleep(0.5)
    return time.monotonic() - began
