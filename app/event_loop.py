"""The event loop that this package's own processes run on."""

from __future__ import annotations

import asyncio


def loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    """The loop of uvloop, for `asyncio.Runner`; None: asyncio's own, where uvloop is not made (Windows)."""
    try:
        import uvloop
    except ImportError:
        return None
    loop: type[asyncio.AbstractEventLoop] = uvloop.Loop
    return loop
