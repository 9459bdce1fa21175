"""Child processes: this process starts them, replaces them and ends them. They end when it ends, in any way.

A child reads its orders from its standard input, one word a line: ``drain``, ``now``, and others that its program
knows. The end of that input means that its parent is lost. A child has a session of its own, so that a terminal's
Ctrl-C reaches the parent alone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path
from typing import Self

from stowhand.clock import Cancelable, SystemClock, stopwatch
from stowhand.service import exit_codes
from stowhand.service.health import Process, read_report
from stowhand.service.signals import StopRequests
from stowhand.worker.host import DEFAULT_TIMINGS, Timings

LAST_WRITE_SECONDS = 2.0
"""Seconds in which a process may still release leases after the third request to stop."""
FIRST_RESTART_PAUSE_SECONDS = 0.1
"""Seconds before a child that died soon after its start is replaced. The pause doubles with each further death."""

SETTLED_CODES = (exit_codes.USAGE, exit_codes.STORE_UNREACHABLE, exit_codes.SCHEMA_UNSUITABLE)
"""Exit codes of a child that would end the same way if started again. A store that becomes unreachable later may
recover, so a child that replaces a dead one is started again."""

# Exit codes between a child and its supervisor:
HUNG_CODE = 7
"""A handler blocked its event loop for too long."""
RENEWED_CODE = 8
"""The worker reached one of its limits. Another process replaces it at once."""
UNOPENED_CODE = 9
"""A resource of its tasks could not be opened. At the start, all children end."""
ORDERLY_EXIT_OFFSET = 200
"""Offset of the exit codes of orderly ends. Any other code means that a handler ended the child (``os._exit``)."""
_CHILD_CODES = (
    exit_codes.OK,
    exit_codes.FAILURE,
    *SETTLED_CODES,
    exit_codes.REPLACE,
    HUNG_CODE,
    RENEWED_CODE,
    UNOPENED_CODE,
)
ORDERLY_EXIT_CODES = {ORDERLY_EXIT_OFFSET + code: code for code in _CHILD_CODES}


class Child:
    """A child process, and the pipe that carries its orders."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(
        cls,
        *module: str,
        order: bytes = b"",
        environ: Mapping[str, str] | None = None,
        stdout: int | None = None,
        pass_fds: Sequence[int] = (),
    ) -> Self:
        """Run ``python -m MODULE ARGUMENT...``. ``order``: its first line. ``environ``: added to this environment."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            *module,
            stdin=asyncio.subprocess.PIPE,
            stdout=stdout,
            env={**os.environ, **(environ or {})},
            pass_fds=pass_fds,
            start_new_session=True,
        )
        child = cls(process)
        if order:
            child.send(order)
        return child

    @property
    def pid(self) -> int:
        """Id of the process, and of its process group."""
        return self.process.pid

    @property
    def code(self) -> int | None:
        """Exit code, negative for a signal; ``None`` while the process runs."""
        return self.process.returncode

    def send(self, line: bytes) -> None:
        """Send one line, unless the process has ended."""
        assert self.process.stdin is not None
        if not self.process.stdin.is_closing():
            self.process.stdin.write(line + b"\n")

    def dismiss(self) -> None:
        """Close its standard input, so that the process exits by itself."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def kill(self) -> None:
        """Kill its process group, unless it has ended."""
        if self.code is not None:
            return
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            with suppress(ProcessLookupError):
                self.process.kill()

    async def wait(self) -> int:
        """Wait until the process has ended. Return its exit code."""
        return await self.process.wait()

    async def end(self, timeout_seconds: float) -> None:
        """Dismiss the process. Kill it unless it ends within the timeout."""
        self.dismiss()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self.wait()
        except TimeoutError:
            self.kill()
            await self.wait()


class Slot:
    """A slot that one child after another fills."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.child: Child | None = None
        """``None`` while it is being started."""
        self.changed_at = stopwatch()
        """Time of the latest child's start or end."""
        self.lifetime = 0.0
        """Seconds that the latest ended child has lived."""
        self.restarts = 0
        self.quick_deaths = 0
        """Consecutive children that died soon after their start."""
        self.is_done = False
        """The slot gets no further child."""

    @property
    def is_running(self) -> bool:
        """The child has not ended."""
        return self.child is not None and self.child.code is None


class NextStep(Enum):
    """Next step after the end of a child."""

    RESTART = auto()
    """Start another child: at once if this one has lived for some seconds, otherwise after a growing pause."""
    AT_ONCE = auto()
    """Start another child without a pause."""
    NONE = auto()
    """Start no other child: the slot is done."""


class Children:
    """Slots that each keep a child running, until all slots are done or a stop is requested.

    ``start`` starts the child of a slot. ``on_end`` receives the child's exit code and returns the next step.
    ``grace``: seconds that children have at the first request to stop; some seconds later they are killed.
    ``on_overdue`` is called when ``on_end`` has still not returned shortly after that.
    """

    def __init__(
        self,
        count: int,
        start: Callable[[Slot], Awaitable[Child]],
        on_end: Callable[[Slot, int], Awaitable[NextStep]],
        grace: float,
        timings: Timings = DEFAULT_TIMINGS,
        on_overdue: Callable[[], None] = lambda: None,
    ) -> None:
        self._start = start
        self._on_end = on_end
        self._on_overdue = on_overdue
        self._grace = grace
        self._timings = timings
        self._clock = SystemClock()
        self._stopped = asyncio.Event()
        self._stop_requests = StopRequests(timings.same_signal_window)
        self._timers: list[Cancelable] = []
        self._latest_order: bytes | None = None
        self._is_killing = False
        self.has_killed = False
        """At least one child had to be killed at a stop."""
        self.slots = [Slot(number) for number in range(count)]

    @property
    def is_stopping(self) -> bool:
        """Ended children are no longer replaced."""
        return self._stopped.is_set()

    async def run(self) -> None:
        """Start the children and replace those that end, until all slots are done."""
        try:
            async with asyncio.TaskGroup() as group:
                for slot in self.slots:
                    group.create_task(self._keep(slot))
        finally:
            for timer in self._timers:
                timer.cancel()
            for slot in self.slots:
                if slot.child is not None and slot.is_running:
                    slot.child.dismiss()

    def order(self, word: bytes) -> None:
        """Send an order to all children; later children get the latest order. Ignored once a stop is requested."""
        if not self.is_stopping:
            self._send(word)

    def request_stop(self) -> None:
        """First request: drain. Second: return the jobs at once. Third: kill."""
        if not self._stop_requests.add():
            return
        if self._stop_requests.count == 1:
            self._stop(b"drain", self._grace)
        elif self._stop_requests.count == 2:
            self._stop(b"now", 0.0)
        else:
            self._stopped.set()
            self._kill(LAST_WRITE_SECONDS)

    def stop(self) -> None:
        """Drain, unless a stop was requested before."""
        if not self.is_stopping:
            self._stop(b"drain", self._grace)

    def health(self, folder: Path | None) -> list[Process]:
        """Return the children that run or should run. ``folder``: where they write their reports."""
        return [
            Process(
                f"process {slot.number + 1}",
                stopwatch() - slot.changed_at,
                read_report(folder, slot.child.pid) if slot.child is not None and slot.is_running else None,
            )
            for slot in self.slots
            if not slot.is_done
        ]

    def _send(self, word: bytes) -> None:
        self._latest_order = word
        for slot in self.slots:
            if slot.child is not None:
                slot.child.send(word)

    def _stop(self, word: bytes, grace: float) -> None:
        self._stopped.set()
        self._send(word)
        kill_delay = self._timings.kill_margin
        self._call_after(grace + self._timings.exit_timeout - kill_delay, lambda: self._kill(kill_delay / 2))

    def _kill(self, overdue: float) -> None:
        self._is_killing = True
        for slot in self.slots:
            self._kill_child(slot)
        self._call_after(overdue, self._on_overdue)

    def _kill_child(self, slot: Slot) -> None:
        if slot.child is not None and slot.is_running:
            slot.child.kill()
            self.has_killed = True

    def _call_after(self, seconds: float, call: Callable[[], None]) -> None:
        self._timers.append(self._clock.call_later(seconds, call))

    async def _keep(self, slot: Slot) -> None:
        while not self.is_stopping:
            code = await self._run_child(slot)
            next_step = await self._on_end(slot, code)
            if next_step is NextStep.NONE:
                break
            slot.restarts += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(0.0 if next_step is NextStep.AT_ONCE else self._pause(slot)):
                    await self._stopped.wait()
        slot.is_done = True

    async def _run_child(self, slot: Slot) -> int:
        slot.child = None
        slot.changed_at = stopwatch()
        child = slot.child = await self._start(slot)
        if self._is_killing:
            self._kill_child(slot)
        elif self._latest_order is not None:
            child.send(self._latest_order)
        code = await child.wait()
        slot.lifetime = stopwatch() - slot.changed_at
        slot.changed_at = stopwatch()
        return code

    def _pause(self, slot: Slot) -> float:
        if slot.lifetime > self._timings.min_steady_time:
            slot.quick_deaths = 0
            return 0.0
        slot.quick_deaths += 1
        return float(min(FIRST_RESTART_PAUSE_SECONDS * 2.0 ** (slot.quick_deaths - 1), self._timings.max_restart_delay))


def stop_with_parent() -> None:
    """Send this process a SIGTERM at each order of its parent, and when the parent ends.

    For a child that knows no other orders: its first SIGTERM drains, its second ends at once.
    """

    def read() -> None:
        while os.read(0, 4096):  # not sys.stdin: this thread would hold its lock while the interpreter ends
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=read, name="stowhand orders", daemon=True).start()
