"""Watches files and folders for as long as a process works, and calls back when they have changed.

The system reports changes, and they are looked for every second besides: a folder that is moved away and made anew
is not reported, nor are changes on some network file systems.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

EVERY = 1.0
"""Seconds between two looks, when nothing is reported."""
QUIET, BURST = 0.05, 0.5
"""A burst of changes is over after so many seconds without one, or when it has lasted so long."""

Snapshot = dict[str, tuple[int, int, int, int]]


class Watched:
    """A file or folder, and what to call when it no longer looks as it did when this was made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.changed: Callable[[], None] = lambda: None
        self._seen = snapshot(path)

    async def look(self) -> None:
        """What changes while it is loaded is seen at the next look."""
        now = await asyncio.to_thread(snapshot, self.path)
        if now != self._seen:
            self._seen = now
            self.changed()


def snapshot(path: Path) -> Snapshot:
    """What there is, and what of it changes when it is written to, replaced, or made executable."""
    found = {}
    for one in (path, *path.rglob("*")):
        parts = one.relative_to(path).parts
        if not any(part.startswith(".") or part == "__pycache__" for part in parts):
            with suppress(OSError):  # gone again, or a link that leads nowhere
                status = one.stat()
                size = (0, 0) if one.is_dir() else (status.st_mtime_ns, status.st_size)
                found["/".join(parts)] = (status.st_ino, status.st_mode, *size)
    return found


@asynccontextmanager
async def watching(*watched: Watched) -> AsyncIterator[None]:
    """Look at them for as long as the block lasts."""
    stop = asyncio.Event()
    running = asyncio.get_running_loop().create_task(_watch(watched, stop), name="stowhand watch")
    try:
        yield
    finally:
        stop.set()
        await running


async def _watch(watched: tuple[Watched, ...], stop: asyncio.Event) -> None:
    while not stop.is_set():
        folders = [one.path for one in watched if one.path.is_dir()]
        try:
            async for _ in _hints(folders, stop):
                for one in watched:
                    await one.look()
        except (OSError, RuntimeError):  # moved away just now, or the system watches no more for us
            await _pause(stop)
            for one in watched:
                await one.look()


async def _hints(folders: list[Path], stop: asyncio.Event) -> AsyncIterator[None]:
    """Yields when something may have changed: it was reported, or a second has passed. Raises OSError, RuntimeError."""
    if not folders:
        await _pause(stop)
        yield
        return
    from watchfiles import awatch

    step, debounce, timeout = (int(seconds * 1000) for seconds in (QUIET, BURST, EVERY))
    async for _ in awatch(
        *folders, step=step, debounce=debounce, rust_timeout=timeout, yield_on_timeout=True, stop_event=stop
    ):
        yield


async def _pause(stop: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(EVERY):
            await stop.wait()
