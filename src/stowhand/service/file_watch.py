"""Watched files: they are polled, and changes are reported.

No system interface reports every change: a folder may be moved away and created again, or be on a network file system.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from stowhand.clock import SystemClock, stopwatch

POLL_INTERVAL_SECONDS = 0.5
"""Seconds between two checks."""
POLL_INTERVAL_FACTOR = 10
"""Time between two checks of a very large folder, as a multiple of the duration of a check."""
QUIET_SECONDS, MAX_BURST_SECONDS = 0.05, 0.5
"""A burst of changes ends after QUIET_SECONDS without one, or after MAX_BURST_SECONDS in total."""

Snapshot = dict[str, tuple[int, ...]]
OnChange = Callable[[list[str]], Awaitable[None] | None]
"""Called with the names of new, deleted and changed files."""


def take_snapshot(path: Path) -> Snapshot:
    """Return the files of a path, each with the values that change when it is written, replaced or made executable."""
    files: Snapshot = {}
    for entry in (path, *path.rglob("*")):
        parts = entry.relative_to(path).parts
        if not any(part.startswith(".") or part == "__pycache__" for part in parts):
            with suppress(OSError):  # deleted meanwhile, or a broken link
                status = entry.stat()
                size = (0, 0) if entry.is_dir() else (status.st_mtime_ns, status.st_size)
                files["/".join(parts)] = (status.st_ino, status.st_mode, *size)
    return files


class WatchedPath:
    """A file or folder with its latest snapshot, taken at construction and at each change."""

    def __init__(self, path: Path, take_files: Callable[[Path], Snapshot] = take_snapshot) -> None:
        self.path = path
        self.check_seconds = 0.0
        """Duration of the latest check."""
        self._take_files = take_files
        self._snapshot = take_files(path)

    async def check(self, on_change: OnChange) -> None:
        """Call ``on_change`` if the path has changed, once the burst of changes is over.

        The next check sees changes that happen while ``on_change`` loads the files.
        """
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
    """Check the paths while the block runs, and call the callback of each changed path."""
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
            with suppress(OSError):  # moved away just now: the next check reports it
                await path.check(on_change)
        with suppress(TimeoutError):
            async with asyncio.timeout(
                max(POLL_INTERVAL_SECONDS, POLL_INTERVAL_FACTOR * sum(path.check_seconds for path in watched))
            ):
                await stop.wait()
