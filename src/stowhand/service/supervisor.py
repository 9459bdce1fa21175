"""Several worker processes under one parent: a dead one is replaced, and its jobs come back at once.

The dead child's leases need not run out, because the parent *saw* it die. Children live in sessions of their own, so a
terminal's Ctrl-C reaches the parent alone. The parent writes orders to a child's standard input; its end means that
the parent is gone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from stowhand.app.settings.settings import WorkerSettings
from stowhand.clock import SystemClock, stopwatch
from stowhand.errors import StoreError
from stowhand.events import ChildDied, ChildRenewed, Events, JobsReset
from stowhand.protocols.operating import WorkerList
from stowhand.protocols.store import Heartbeats
from stowhand.service import exit_codes
from stowhand.service.exit_codes import REPLACE
from stowhand.service.process import LAST_WRITE, hard_exit
from stowhand.service.stop_requests import StopRequests
from stowhand.worker.worker import new_identity

SETTLED_CODES = (exit_codes.USAGE, exit_codes.STORE_UNREACHABLE, exit_codes.SCHEMA_UNSUITABLE)
"""Exit codes of a child for which another start would end the same way. But a store that goes away later may come back:
a replacement of a dead child is started again."""
UNOPENED = 9
"""Between a child and its supervisor: what its tasks ask for could not be opened. At the start that ends all."""
HUNG = 7
"""Between a child and its supervisor: a handler blocked its event loop for too long."""
RENEWED = 8
"""Between a child and its supervisor: a limit of its worker was reached. Another process takes its place at once."""
IN_ORDER_OFFSET = 200
"""Added to the exit code of a child that ends in order. With any other code, a handler has ended it (``os._exit``)."""
_CHILD_CODES = (exit_codes.OK, exit_codes.FAILURE, *SETTLED_CODES, REPLACE, HUNG, RENEWED, UNOPENED)
IN_ORDER = {IN_ORDER_OFFSET + code: code for code in _CHILD_CODES}


class Order(msgspec.Struct, frozen=True):
    """The first line that a child reads."""

    settings: msgspec.Raw
    name: str
    folder: str | None = None
    """Where it writes its reports."""
    parent: int = 0
    """The process that gives the order."""


class Child:
    """One slot: the process that runs in it now."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.name = ""
        self.process: asyncio.subprocess.Process | None = None
        self.started = self.ended = 0.0
        """Of the latest process, by the stopwatch."""
        self.quick_deaths = 0

    def send(self, word: str) -> None:
        """Send one line, unless the child has died."""
        if self.process is not None and self.process.stdin is not None and not self.process.stdin.is_closing():
            self.process.stdin.write(word.encode() + b"\n")

    @property
    def is_done(self) -> bool:
        """It has ended in order, and well."""
        return self.process is not None and IN_ORDER.get(self.process.returncode or 0) == exit_codes.OK

    def kill(self) -> bool:
        """False: there is nothing alive."""
        if self.process is None or self.process.returncode is not None:
            return False
        self.process.kill()
        return True


class Supervisor:
    """``await run()`` until every child has ended for good. ``heartbeats`` opens the connection that takes jobs back.

    ``folder``: where the children write their reports; ``None``: they write none.
    """

    def __init__(
        self, settings: WorkerSettings, heartbeats: Callable[[], Heartbeats], events: Events, folder: Path | None = None
    ) -> None:
        self._settings, self._timings = settings, settings.timings
        self._make_heartbeats = heartbeats
        self._events = events
        self._folder = None if folder is None else str(folder)
        self._clock = SystemClock()
        self._stopped = asyncio.Event()
        self._stop_requests = StopRequests(self._timings.same_signal)
        self._quiet = False
        self._code = exit_codes.OK
        self._began = stopwatch()
        self.children = [Child(number) for number in range(settings.processes)]

    @property
    def stopping(self) -> bool:
        """Children that end are not replaced any more."""
        return self._stopped.is_set()

    async def run(self) -> int:
        """Start the children and keep them running. Gives the exit code."""
        async with asyncio.TaskGroup() as group:
            for child in self.children:
                group.create_task(self._keep(child))
        return self._code

    def request_stop(self) -> None:
        """First request: drain. Second: hand back at once. Third: exit now."""
        if self._stop_requests.add():
            self._stop()

    def toggle(self) -> None:
        """Pause claiming in all children; called again: resume."""
        self._quiet = not self._quiet
        for child in self.children:
            child.send("quiet" if self._quiet else "take")

    def _stop(self) -> None:
        self._stopped.set()
        for child in self.children:
            self._send_orders(child)
        if self._stop_requests.count > 2:
            self._code = exit_codes.FAILURE
            self._clock.call_later(LAST_WRITE, lambda: hard_exit(exit_codes.FAILURE))
        grace = self._settings.worker.grace if self._stop_requests.count == 1 else 0.0
        self._clock.call_later(grace + self._timings.exited - self._timings.killed, self._kill_all)

    def _send_orders(self, child: Child) -> None:
        """Send what was requested so far. A child that is just being made receives it after its order."""
        if self._stop_requests.count > 2:
            child.kill()
        elif self._stop_requests.count:
            child.send("drain" if self._stop_requests.count == 1 else "now")
        elif self._quiet:
            child.send("quiet")

    def _kill_all(self) -> None:
        for child in self.children:
            if child.kill():
                self._code = exit_codes.FAILURE
        # The call that takes back what the dead held may hang on a store that does not answer.
        self._clock.call_later(self._timings.killed / 2, lambda: hard_exit(exit_codes.FAILURE))

    async def _keep(self, child: Child) -> None:
        while not self._stopped.is_set():
            await self._start(child)
            assert child.process is not None
            ended = await child.process.wait()
            child.ended = stopwatch()
            code = IN_ORDER.get(ended, exit_codes.FAILURE)
            if code == RENEWED:
                self._events.emit(ChildRenewed(child.name, child.process.pid))
            elif code != exit_codes.OK and not await self._take_back(child, ended):
                code = exit_codes.OK
            if self._ends_with(child, code):
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(0.0 if code == RENEWED else self._pause(child)):
                    await self._stopped.wait()

    async def _start(self, child: Child) -> None:
        child.name, child.started = f"{new_identity()}.{child.number + 1}", stopwatch()
        child.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "stowhand.service.child",
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        child.send(msgspec.json.encode(Order(self._settings.to_json(), child.name, self._folder, os.getpid())).decode())
        self._send_orders(child)

    def _ends_with(self, child: Child, code: int) -> bool:
        """Whether this slot is done: asked to stop, drained, or unable to start."""
        never_worked = code in (exit_codes.STORE_UNREACHABLE, UNOPENED)
        is_later = stopwatch() - self._began > self._timings.steady
        if code in (*SETTLED_CODES, UNOPENED) and not (never_worked and (self.stopping or is_later)):
            self._code = _shown(code)
            if not self._stopped.is_set():
                self._stop()
            return True
        if self._stopped.is_set() and code not in (exit_codes.OK, RENEWED) and not never_worked:
            self._code = exit_codes.FAILURE
        return self._stopped.is_set() or (self._settings.worker.once and code == exit_codes.OK)

    async def _take_back(self, child: Child, ended: int) -> bool:
        """Take back at once what the dead child held, and report its death. False: a signal to the whole group killed
        it before it worked, and it held nothing."""
        assert child.process is not None
        # On a loop in a thread of its own: a call to the store may block it.
        jobs = await asyncio.to_thread(lambda: asyncio.run(self._reset(child.name)))
        if self.stopping and ended == -signal.SIGTERM and not jobs:
            return False
        self._events.emit(ChildDied(child.name, child.process.pid, _how(ended), jobs))
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

    def _pause(self, child: Child) -> float:
        if stopwatch() - child.started > self._timings.steady:
            child.quick_deaths = 0
            return 0.0
        child.quick_deaths += 1
        return min(0.1 * 2.0 ** (child.quick_deaths - 1), self._timings.slowest_restart)


def _how(ended: int) -> str:
    """How a child ended, in words, from what ``wait`` gave."""
    if ended < 0:
        return f"was killed by {_named(-ended)}"
    code = IN_ORDER.get(ended, ended)
    if ended in IN_ORDER and code == HUNG:
        return "hung: a handler blocked its event loop"
    reason = ": too many threads outlived their timeouts" if ended in IN_ORDER and code == REPLACE else ""
    return f"ended with code {_shown(code)}{reason}"


def _shown(code: int) -> int:
    """As the table of exit codes has it."""
    return exit_codes.FAILURE if code in (UNOPENED, HUNG) else code


def _named(number: int) -> str:
    """Of a signal; most of the real-time ones have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
