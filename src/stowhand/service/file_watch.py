"""Watched files: they are looked at again and again, and a change of them is reported.

No system reports every change (a folder that is moved away and made anew, network file systems), so none is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from stowhand.clock import SystemClock, stopwatch

EVERY = 0.5
"""Seconds between two looks."""
SHARE = 10
"""The time between two looks at a very large folder, as a multiple of the time that a look takes."""
QUIET, BURST = 0.05, 0.5
"""A burst of changes is over after so many seconds without one, or when it has lasted so long."""

Snapshot = dict[str, tuple[int, ...]]
OnChange = Callable[[list[str]], Awaitable[None] | None]
"""Called with the names of what is new, gone or different."""


def snapshot(path: Path) -> Snapshot:
    """What there is, and what of it changes when it is written to, replaced, or made executable."""
    found: Snapshot = {}
    for one in (path, *path.rglob("*")):
        parts = one.relative_to(path).parts
        if not any(part.startswith(".") or part == "__pycache__" for part in parts):
            with suppress(OSError):  # gone again, or a link that leads nowhere
                status = one.stat()
                size = (0, 0) if one.is_dir() else (status.st_mtime_ns, status.st_size)
                found["/".join(parts)] = (status.st_ino, status.st_mode, *size)
    return found


class Watched:
    """A file or folder, and how it looked when this was made or when it was last found changed."""

    def __init__(self, path: Path, look: Callable[[Path], Snapshot] = snapshot) -> None:
        self.path = path
        self.look_seconds = 0.0
        """How long the latest look took."""
        self._look = look
        self._seen = look(path)

    async def look(self, on_change: OnChange) -> None:
        """Call ``on_change`` if it has changed, once nothing changes any more. What changes while it is loaded is seen
        at the next look."""
        began = stopwatch()
        now = await asyncio.to_thread(self._look, self.path)
        self.look_seconds = stopwatch() - began
        before, deadline = self._seen, stopwatch() + BURST
        if now == before:
            return
        while (later := await self._look_later()) != now and stopwatch() < deadline:
            now = later
        self._seen = now
        names = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
        if names and (reloading := on_change(names)) is not None:
            await reloading

    async def _look_later(self) -> Snapshot:
        await SystemClock().sleep(QUIET)
        return await asyncio.to_thread(self._look, self.path)


@asynccontextmanager
async def watching(watched: Mapping[Watched, OnChange]) -> AsyncIterator[None]:
    """Look at them for as long as the block lasts, and call what belongs to each that has changed."""
    if not watched:
        yield
        return
    stop = asyncio.Event()
    running = asyncio.get_running_loop().create_task(_watch(watched, stop), name="stowhand watch")
    try:
        yield
    finally:
        stop.set()
        await running


async def _watch(watched: Mapping[Watched, OnChange], stop: asyncio.Event) -> None:
    while not stop.is_set():
        for one, on_change in watched.items():
            with suppress(OSError):  # moved away just now: the next look finds that
                await one.look(on_change)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(EVERY, SHARE * sum(one.look_seconds for one in watched))):
                await stop.wait()
