"""Supervisor of several worker processes: it replaces a dead child and resets its jobs at once.

It need not wait until the leases of the child expire, because it *saw* the child die.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec

from stowhand.app.settings.settings import WorkerSettings
from stowhand.clock import stopwatch
from stowhand.errors import StoreError
from stowhand.events import ChildDied, ChildRenewed, Events, JobsReset
from stowhand.protocols.operator import WorkerList
from stowhand.protocols.store import Heartbeats
from stowhand.service import exit_codes
from stowhand.service.children import (
    HUNG_CODE,
    ORDERLY_EXIT_CODES,
    RENEWED_CODE,
    SETTLED_CODES,
    UNOPENED_CODE,
    Child,
    Children,
    NextStep,
    Slot,
)
from stowhand.service.exit_codes import REPLACE
from stowhand.service.process import hard_exit
from stowhand.tasks.program import describe_exit
from stowhand.worker.worker import new_identity


class ChildOrder(msgspec.Struct, frozen=True):
    """The first line that a child reads."""

    settings: msgspec.Raw
    name: str
    folder: str | None = None
    """Folder for the child's reports."""
    parent: int = 0
    """Id of the process that sends the order."""


class Supervisor:
    """Supervisor that keeps worker processes running until each slot is done.

    ``heartbeats`` opens the connection that resets jobs. ``folder``: where the children write their reports; ``None``
    if they write none.
    """

    def __init__(
        self, settings: WorkerSettings, heartbeats: Callable[[], Heartbeats], events: Events, folder: Path | None = None
    ) -> None:
        self._settings = settings
        self._timings = settings.timings
        self._make_heartbeats = heartbeats
        self._events = events
        self._folder = None if folder is None else str(folder)
        self._is_quiet = False
        self._code = exit_codes.OK
        self._started_at = stopwatch()
        self._names = [""] * settings.processes
        """Name of the latest worker of each slot."""
        self.children = Children(
            settings.processes,
            self._start,
            self._on_end,
            grace=settings.worker.grace,
            timings=settings.timings,
            # The call that resets a dead child's jobs may wait for a store that does not answer.
            on_overdue=lambda: hard_exit(exit_codes.FAILURE),
        )

    async def run(self) -> int:
        """Start the children and keep them running. Return the exit code."""
        await self.children.run()
        return exit_codes.FAILURE if self.children.has_killed else self._code

    def request_stop(self) -> None:
        """First request: drain. Second: return the jobs at once. Third: exit now."""
        self.children.request_stop()

    def toggle(self) -> None:
        """Pause claiming in all children; called again: resume."""
        self._is_quiet = not self._is_quiet
        self.children.order(b"quiet" if self._is_quiet else b"take")

    async def _start(self, slot: Slot) -> Child:
        name = self._names[slot.number] = f"{new_identity()}.{slot.number + 1}"
        order = ChildOrder(self._settings.to_json(), name, self._folder, os.getpid())
        return await Child.start("stowhand.service.child", order=msgspec.json.encode(order))

    async def _on_end(self, slot: Slot, exit_status: int) -> NextStep:
        assert slot.child is not None
        name, pid = self._names[slot.number], slot.child.pid
        code = ORDERLY_EXIT_CODES.get(exit_status, exit_codes.FAILURE)
        if code == RENEWED_CODE:
            self._events.emit(ChildRenewed(name, pid))
            return NextStep.AT_ONCE
        if code != exit_codes.OK and not await self._reset_jobs(name, pid, exit_status):
            code = exit_codes.OK
        return NextStep.NONE if self._ends_with(code) else NextStep.RESTART

    def _ends_with(self, code: int) -> bool:
        """Return whether the slot is done: stopped, drained, or unable to start. Stop all children in the last case."""
        has_never_worked = code in (exit_codes.STORE_UNREACHABLE, UNOPENED_CODE)
        is_steady = stopwatch() - self._started_at > self._timings.min_steady_time
        if code in (*SETTLED_CODES, UNOPENED_CODE) and not (
            has_never_worked and (self.children.is_stopping or is_steady)
        ):
            self._code = _public_code(code)
            self.children.stop()
            return True
        if self.children.is_stopping and code != exit_codes.OK and not has_never_worked:
            self._code = exit_codes.FAILURE
        return self.children.is_stopping or (self._settings.worker.once and code == exit_codes.OK)

    async def _reset_jobs(self, name: str, pid: int, exit_status: int) -> bool:
        """Reset the jobs of the dead child at once, and report its death.

        Return False if a signal to the whole group killed the child before it worked, and it held no jobs.
        """
        # Run it on a loop in a thread of its own: a call to the store may block that loop.
        jobs = await asyncio.to_thread(lambda: asyncio.run(self._reset(name)))
        if self.children.is_stopping and exit_status == -signal.SIGTERM and not jobs:
            return False
        self._events.emit(ChildDied(name, pid, _outcome_text(exit_status), jobs))
        return True

    async def _reset(self, name: str) -> int:
        heartbeats = self._make_heartbeats()
        total = 0
        try:
            while jobs := await heartbeats.reset_worker(name):
                total += len(jobs)
                self._events.emit(JobsReset(tuple(jobs)))
            if isinstance(heartbeats, WorkerList):
                await heartbeats.worker_gone(name)  # otherwise it would be listed as alive, with free slots
        except StoreError:
            return total  # its other leases expire by themselves
        finally:
            await heartbeats.close()
        return total


def _outcome_text(exit_status: int) -> str:
    """Describe how a child ended."""
    code = ORDERLY_EXIT_CODES.get(exit_status, exit_status)
    if exit_status in ORDERLY_EXIT_CODES and code == HUNG_CODE:
        return "hung: a handler blocked its event loop"
    description = describe_exit(_public_code(code))
    if exit_status in ORDERLY_EXIT_CODES and code == REPLACE:
        return f"{description}: too many threads outlived their timeouts"
    return description


def _public_code(code: int) -> int:
    """Return the code as ``exit_codes`` defines it."""
    return exit_codes.FAILURE if code in (UNOPENED_CODE, HUNG_CODE) else code
