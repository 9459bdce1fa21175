"""One attempt with an execution log that can be made to fail, and everything its logger was told."""

from __future__ import annotations

from typing import Any

import psutil

from stowhand.clock import Clock, SystemClock, sleep_blocking
from stowhand.errors import LogRefused, StoreUnreachable
from stowhand.events import Event, JobLogged
from stowhand.jobs.execution_log import ExecutionLogEntry
from stowhand.jobs.lease import Lease
from stowhand.protocols.attempt import Attempt, AttemptLogger, control_of
from stowhand.protocols.store import Claim


class Harness:
    """The attempt's store: entries in a list, and when each was written."""

    def __init__(self, clock: Clock | None = None, *, keeps_logs: bool = True) -> None:
        self.clock = clock or SystemClock()
        self.entries: list[ExecutionLogEntry] = []
        self.moments: list[float] = []
        """Of every write that was tried."""
        self.down = self.refuses = False
        self.said: list[tuple[str, str]] = []
        claim = Claim(Lease(7, "token", 5), {"id": 7}, "uploads", 1, 1)
        self.ctx: Attempt[Any] = Attempt(claim, 0.0, lambda claim: AttemptLogger(self._hear, "w", "uploads", 7))
        if keeps_logs:
            control_of(self.ctx).bind(self)

    async def add_execution_log_entry(self, entry: ExecutionLogEntry) -> int:
        self._tried()
        self.entries.append(entry)
        return len(self.entries)

    async def update_execution_log_entry(self, number: int, entry: ExecutionLogEntry) -> None:
        self._tried()
        self.entries[number - 1] = entry

    @property
    def warnings(self) -> list[str]:
        """What the job's logger was warned of."""
        return [message for level, message in self.said if level == "warning"]

    def _tried(self) -> None:
        self.moments.append(round(self.clock.monotonic(), 3))
        if self.down:
            raise StoreUnreachable("the store does not answer")
        if self.refuses:
            raise LogRefused("the attempt is over")

    def _hear(self, event: Event) -> None:
        assert isinstance(event, JobLogged)
        self.said.append((event.level, event.message))


def wait_until_gone(pid: int) -> None:
    """A process of another parent: collected by the first process of the machine, or by nobody."""
    deadline = SystemClock().monotonic() + 10
    while _runs(pid):
        assert SystemClock().monotonic() < deadline, f"process {pid} still runs"
        sleep_blocking(0.01)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
