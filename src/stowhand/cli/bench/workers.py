"""Worker processes for the length of one measurement, started as ``stowhand worker`` starts them."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from stowhand.app.settings.settings import WorkerSettings
from stowhand.clock import SystemClock
from stowhand.errors import StoreError
from stowhand.events import Events
from stowhand.protocols.store import Heartbeats
from stowhand.service.supervisor import Supervisor

LOOK_EVERY = 0.002
"""Seconds between two looks at something that is awaited."""


class Workers:
    """``async with``: they run inside the block, and have ended after it."""

    def __init__(self, settings: WorkerSettings, heartbeats: Callable[[], Heartbeats]) -> None:
        self._supervisor = Supervisor(settings, heartbeats, Events())
        self._clock = SystemClock()
        self._running: asyncio.Task[int] | None = None

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self._supervisor.run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._running is not None
        self._supervisor.request_stop()
        await self._running

    async def until(self, reached: Callable[[], bool], seconds: float, what: str, *, every: float = LOOK_EVERY) -> None:
        """Wait for what only the workers can bring about. Raises StoreError when it takes too long."""
        assert self._running is not None
        deadline = self._clock.monotonic() + seconds
        while not reached():
            if self._running.done():
                raise StoreError(f"the worker processes ended by themselves, with code {self._running.result()}")
            if self._clock.monotonic() > deadline:
                raise StoreError(f"gave up waiting {seconds:g} s for this: {what}")
            await self._clock.sleep(every)

    def memory(self) -> float:
        """Megabytes (10^6 bytes) resident in the largest of them."""
        pids = [child.process.pid for child in self._supervisor.children if child.process is not None]
        return max(resident(pid) for pid in pids)


def resident(pid: int) -> float:
    """Megabytes that a process has in memory, as the system counts them."""
    status = Path(f"/proc/{pid}/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS:"))
        kilobytes = line.split()[1]
    else:
        kilobytes = subprocess.run(
            ["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, check=True
        ).stdout.decode()
    return int(kilobytes) * 1024 / 1e6
