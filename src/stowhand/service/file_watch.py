"""Watched files: they are looked at again and again, and a change of them is reported.

No system reports every change (a folder that is moved away and made anew, network file systems), so none is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from stowhand.clock import SystemClock, stopwatch

POLL_INTERVAL_SECONDS = 0.5
"""Seconds between two looks."""
POLL_INTERVAL_FACTOR = 10
"""The time between two looks at a very large folder, as a multiple of the time that a look takes."""
QUIET_SECONDS, MAX_BURST_SECONDS = 0.05, 0.5
"""A burst of changes is over after so many seconds without one, or when it has lasted so long."""

Snapshot = dict[str, tuple[int, ...]]
OnChange = Callable[[list[str]], Awaitable[None] | None]
"""Called with the names of what is new, gone or different."""


def take_snapshot(path: Path) -> Snapshot:
    """What there is, and what of it changes when it is written to, replaced, or made executable."""
    files: Snapshot = {}
    for entry in (path, *path.rglob("*")):
        parts = entry.relative_to(path).parts
        if not any(part.startswith(".") or part == "__pycache__" for part in parts):
            with suppress(OSError):  # gone again, or a link that leads nowhere
                status = entry.stat()
                size = (0, 0) if entry.is_dir() else (status.st_mtime_ns, status.st_size)
                files["/".join(parts)] = (status.st_ino, status.st_mode, *size)
    return files


class WatchedPath:
    """A file or folder, and how it looked when this was made or when it was last found changed."""

    def __init__(self, path: Path, take_files: Callable[[Path], Snapshot] = take_snapshot) -> None:
        self.path = path
        self.check_seconds = 0.0
        """How long the latest look took."""
        self._take_files = take_files
        self._snapshot = take_files(path)

    async def check(self, on_change: OnChange) -> None:
        """Call ``on_change`` if it has changed, once nothing changes any more. What changes while it is loaded is seen
        at the next look."""
        started_at = stopwatch()
        snapshot = await asyncio.to_thread(self._take_files, self.path)
        self.check_seconds = stopwatch() - started_at
        before, deadline = self._snapshot, stopwatch() + MAX_BURST_SECONDS
        if snapshot == before:
            return
        while (next_snapshot := await self._take_later_snapshot()) != snapshot and stopwatch() < deadline:
            snapshot = next_snapshot
        self._snapshot = snapshot
        names = sorted(name for name in {*before, *snapshot} if before.get(name) != snapshot.get(name))
        if names and (reloading := on_change(names)) is not None:
            await reloading

    async def _take_later_snapshot(self) -> Snapshot:
        await SystemClock().sleep(QUIET_SECONDS)
        return await asyncio.to_thread(self._take_files, self.path)


@asynccontextmanager
async def watch_paths(watched: Mapping[WatchedPath, OnChange]) -> AsyncIterator[None]:
    """Look at them for as long as the block lasts, and call what belongs to each that has changed."""
    if not watched:
        yield
        return
    stop = asyncio.Event()
    running = asyncio.get_running_loop().create_task(_poll(watched, stop), name="stowhand watch")
    try:
        yield
    finally:
        stop.set()
        await running


async def _poll(watched: Mapping[WatchedPath, OnChange], stop: asyncio.Event) -> None:
    while not stop.is_set():
        for path, on_change in watched.items():
            with suppress(OSError):  # moved away just now: the next look finds that
                await path.check(on_change)
        with suppress(TimeoutError):
            async with asyncio.timeout(
                max(POLL_INTERVAL_SECONDS, POLL_INTERVAL_FACTOR * sum(path.check_seconds for path in watched))
            ):
                await stop.wait()
