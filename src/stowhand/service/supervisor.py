"""Several worker processes under one parent: a dead one is replaced, and its jobs come back at once.

The dead child's leases need not run out, because the parent *saw* it die.
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
from stowhand.service.children import HUNG, IN_ORDER, RENEWED, SETTLED_CODES, UNOPENED, Child, Children, Next, Slot
from stowhand.service.exit_codes import REPLACE
from stowhand.service.process import hard_exit
from stowhand.tasks.program import describe_exit
from stowhand.worker.worker import new_identity


class Order(msgspec.Struct, frozen=True):
    """The first line that a child reads."""

    settings: msgspec.Raw
    name: str
    folder: str | None = None
    """Where it writes its reports."""
    parent: int = 0
    """The process that gives the order."""


class Supervisor:
    """Keeps worker processes running until each slot is done. ``heartbeats`` opens the connection that takes jobs back.

    ``folder``: where the children write their reports; ``None``: they write none.
    """

    def __init__(
        self, settings: WorkerSettings, heartbeats: Callable[[], Heartbeats], events: Events, folder: Path | None = None
    ) -> None:
        self._settings, self._timings = settings, settings.timings
        self._make_heartbeats = heartbeats
        self._events = events
        self._folder = None if folder is None else str(folder)
        self._quiet = False
        self._code = exit_codes.OK
        self._began = stopwatch()
        self._names = [""] * settings.processes
        """Name of the latest worker of each slot."""
        self.children = Children(
            settings.processes,
            self._start,
            self._on_end,
            grace=settings.worker.grace,
            timings=settings.timings,
            # The call that takes back what the dead held may hang on a store that does not answer.
            on_overdue=lambda: hard_exit(exit_codes.FAILURE),
        )

    async def run(self) -> int:
        """Start the children and keep them running. Gives the exit code."""
        await self.children.run()
        return exit_codes.FAILURE if self.children.were_killed else self._code

    def request_stop(self) -> None:
        """First request: drain. Second: return the jobs at once. Third: exit now."""
        self.children.request_stop()

    def toggle(self) -> None:
        """Pause claiming in all children; called again: resume."""
        self._quiet = not self._quiet
        self.children.order(b"quiet" if self._quiet else b"take")

    async def _start(self, slot: Slot) -> Child:
        name = self._names[slot.number] = f"{new_identity()}.{slot.number + 1}"
        order = Order(self._settings.to_json(), name, self._folder, os.getpid())
        return await Child.start("stowhand.service.child", order=msgspec.json.encode(order))

    async def _on_end(self, slot: Slot, ended: int) -> Next:
        assert slot.child is not None
        name, pid = self._names[slot.number], slot.child.pid
        code = IN_ORDER.get(ended, exit_codes.FAILURE)
        if code == RENEWED:
            self._events.emit(ChildRenewed(name, pid))
            return Next.AT_ONCE
        if code != exit_codes.OK and not await self._take_back(name, pid, ended):
            code = exit_codes.OK
        return Next.NONE if self._ends_with(code) else Next.RESTART

    def _ends_with(self, code: int) -> bool:
        """Whether a slot is done: asked to stop, drained, or unable to start."""
        never_worked = code in (exit_codes.STORE_UNREACHABLE, UNOPENED)
        is_later = stopwatch() - self._began > self._timings.steady
        if code in (*SETTLED_CODES, UNOPENED) and not (never_worked and (self.children.stopping or is_later)):
            self._code = _shown(code)
            self.children.stop()
            return True
        if self.children.stopping and code != exit_codes.OK and not never_worked:
            self._code = exit_codes.FAILURE
        return self.children.stopping or (self._settings.worker.once and code == exit_codes.OK)

    async def _take_back(self, name: str, pid: int, ended: int) -> bool:
        """Take back at once what the dead child held, and report its death. False: a signal to the whole group killed
        it before it worked, and it held nothing."""
        # On a loop in a thread of its own: a call to the store may block it.
        jobs = await asyncio.to_thread(lambda: asyncio.run(self._reset(name)))
        if self.children.stopping and ended == -signal.SIGTERM and not jobs:
            return False
        self._events.emit(ChildDied(name, pid, _how(ended), jobs))
        return True

    async def _reset(self, name: str) -> int:
        heartbeats = self._make_heartbeats()
        total = 0
        try:
            while found := await heartbeats.reset_worker(name):
                total += len(found)
                self._events.emit(JobsReset(tuple(found)))
            if isinstance(heartbeats, WorkerList):
                await heartbeats.worker_gone(name)  # else it would be listed as alive, with free slots
        except StoreError:
            return total  # the rest of its leases end by themselves
        finally:
            await heartbeats.close()
        return total


def _how(ended: int) -> str:
    """How a child ended, in words."""
    code = IN_ORDER.get(ended, ended)
    if ended in IN_ORDER and code == HUNG:
        return "hung: a handler blocked its event loop"
    reason = ": too many threads outlived their timeouts" if ended in IN_ORDER and code == REPLACE else ""
    return f"{describe_exit(_shown(code))}{reason}"


def _shown(code: int) -> int:
    """Return the code as the table of exit codes has it."""
    return exit_codes.FAILURE if code in (UNOPENED, HUNG) else code
