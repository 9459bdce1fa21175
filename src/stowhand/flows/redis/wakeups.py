"""Wakeups of idle workers: by a job in a waiting list, or when a delayed job becomes ready.

An idle worker blocks on the waiting lists. ``BLMOVE waiting moved LEFT RIGHT`` returns as soon as the list contains a
job, pushed by any program (the original implementation included). It returns to one caller: a new job wakes one idle
worker, not all of them. A job in ``moved`` is not claimed yet. Any claim takes it first, so no job is lost if the
connection breaks or the worker dies. If no claim comes within a second, the sweep puts the job back, which wakes
another worker. (In ``processing`` it would look like the job of a lost worker.) Each list has its own blocked
connection.

Claims also take delayed jobs that are ready. If each idle worker set a timer, all of them would claim for one job. So
one worker of a queue, its timekeeper, sets a timer for all (``lua/due.lua``). It sleeps until the next job is ready, or
until a push to the list ``bell`` reports an earlier one. If it dies, the next worker whose claim finds no job takes its
place; until then the sweep moves overdue jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

from stowhand.errors import StoreError
from stowhand.flows.redis.dialer import Client
from stowhand.flows.redis.error_translation import translated
from stowhand.flows.redis.layout import QueueLocation
from stowhand.flows.redis.server import Server
from stowhand.observe.propagation import bound_correlation_id

MIN_BLOCK_SECONDS = 0.01
"""Minimum seconds of a blocking call: with 0 it would block forever."""
PAUSED_POLL_SECONDS = 1.0
"""Seconds between two claims of a worker whose queue is paused."""
MAX_MOVED_JOBS = 100
MIN_IDLE_SECONDS = 0.005
"""Seconds: a call that blocks for longer has found its list empty."""
TIMEKEEPER_TERM_SECONDS = 4.0
"""Seconds after which another worker may become the timekeeper, unless this one renews its term."""
MAX_SLEEP_SECONDS = 1.5
"""Maximum seconds between two calls of ``due.lua``."""
LISTEN_TIMEOUT_SECONDS = 30.0
"""Seconds for which one call waits for a push to the bell."""
HANDOVER_SECONDS = 0.002
"""Seconds that an idle worker needs to claim a job that became ready."""


class ListWaiter:
    """Waiter on the lists of one queue. ``longest``: maximum seconds for which one call blocks.

    A call on a list with jobs returns at once. So no call is made after a full claim (the worker claims again anyway),
    or between a wakeup and the claim that follows it.
    """

    def __init__(self, server: Server, bases: Sequence[str], longest: float) -> None:
        self._server = server
        self._longest = longest
        self._bases = bases
        self._clients: dict[str, Client] = {}
        self._dry = asyncio.Event()
        self._dry.set()
        self._closing = asyncio.Event()
        self._clock = server.clock
        self.was_woken = False
        """Whether a job has come since the last claim."""
        self.was_idle = False
        """Whether the worker was idle when that job came: the lists were empty."""
        self.is_paused = False
        """Whether the last claim found the queue paused. Then no call is made, since the lists may contain jobs."""
        self.is_listening = True
        """Whether no blocking call has failed since the last reply. A busy worker makes no such calls."""

    def open(self) -> None:
        """Allow waiting, also after ``close``."""
        self._closing.clear()

    def claimed(self, *, dry: bool) -> None:
        """Note a claim. ``dry``: it returned fewer jobs than requested."""
        self.was_woken = self.was_idle = False
        if dry:
            self._dry.set()
        else:
            self._dry.clear()

    async def wait(self, timeout: float) -> bool:
        """Wait until one of the lists contains a job. Return False at the timeout, or when the store closes."""
        if self.is_paused:
            return await self._first_of([self._passed(min(timeout, self._longest, PAUSED_POLL_SECONDS))])
        deadline = self._clock.monotonic() + min(timeout, self._longest)
        if not await self._until_dry(deadline):
            return False
        started_at = self._clock.monotonic()
        remaining_seconds = max(deadline - started_at, MIN_BLOCK_SECONDS)
        if not await self._first_of([self._head(base, remaining_seconds) for base in self._bases]):
            return False
        self.was_woken = True
        self.was_idle = self._clock.monotonic() - started_at > MIN_IDLE_SECONDS
        self._dry.clear()
        return True

    async def close(self) -> None:
        """Stop waiting, and put moved jobs back for other workers. The dialer closes the connections."""
        self._closing.set()
        clients, self._clients = self._clients, {}
        if self.is_listening:
            with suppress(StoreError):  # otherwise the sweep puts them back
                for base, client in clients.items():
                    await self._put_back(client, base)

    async def _put_back(self, client: Client, base: str) -> None:
        with translated(self._server.address):
            for _ in range(MAX_MOVED_JOBS):
                if await client.execute_command("LMOVE", f"{base}:moved", f"{base}:waiting", "RIGHT", "LEFT") is None:
                    return

    async def _until_dry(self, deadline: float) -> bool:
        """Wait until a claim returns fewer jobs than requested. Return False at the deadline or on closing."""
        if self._dry.is_set():
            return not self._closing.is_set()
        remaining_seconds = deadline - self._clock.monotonic()
        return await self._first_of([_set(self._dry), self._passed(remaining_seconds)]) and self._dry.is_set()

    async def _passed(self, seconds: float) -> bool:
        await self._clock.sleep(seconds)
        return True

    async def _first_of(self, calls: Sequence[Coroutine[Any, Any, bool]]) -> bool:
        """Return True as soon as one call does; False if none does, or when the store closes. Cancel the others."""
        closing = asyncio.ensure_future(_set(self._closing))
        pending = {asyncio.ensure_future(call) for call in calls}
        all_tasks = {closing, *pending}
        try:
            while pending and not self._closing.is_set():
                done, _ = await asyncio.wait({closing, *pending}, return_when=asyncio.FIRST_COMPLETED)
                pending -= done
                if any(task.result() for task in done - {closing}):
                    return True
            return False
        finally:
            for task in all_tasks:
                task.cancel()
            await asyncio.gather(*all_tasks, return_exceptions=True)

    async def _head(self, base: str, longest: float) -> bool:
        """Block until the list of this base contains a job. Return False after ``longest`` seconds."""
        if base not in self._clients:
            self._clients[base] = self._server.dialer.blocking_client(self._longest)
        lists = (f"{base}:waiting", f"{base}:moved")
        try:
            with translated(self._server.address):
                head = await self._clients[base].execute_command("BLMOVE", *lists, "LEFT", "RIGHT", longest)
        except StoreError:
            self.is_listening = False
            raise
        self.is_listening = True
        return head is not None


class Timekeeper:
    """Timekeeper of one queue; inactive until ``start``."""

    def __init__(self, server: Server, queue: QueueLocation) -> None:
        self._server = server
        self._queue = queue
        self._bell = queue.keys.bell(queue.name)
        self._task: asyncio.Task[None] | None = None
        self._client: Client | None = None
        self._ringing: asyncio.Task[None] | None = None
        self._worker = ""

    def start(self, worker: str) -> None:
        """Become the timekeeper, since the claim found none. Has no effect if this already is the timekeeper."""
        if self._task is None or self._task.done():
            self._worker = worker
            with bound_correlation_id(None):
                self._task = asyncio.create_task(self._keep(worker), name=f"timekeeper {self._queue.name}")

    async def close(self) -> None:
        """Stop, so that another worker takes over; the dialer closes the connection."""
        task, self._task = self._task, None
        self._client = None
        if task is not None:
            was_running = not task.done()
            task.cancel()
            await asyncio.wait([task])
            if was_running:
                with suppress(StoreError):  # otherwise the term expires by itself
                    await self._ask(self._worker, 0.0)

    async def _keep(self, worker: str) -> None:
        """Be the timekeeper until another worker is, or the server does not answer. A later claim starts it again."""
        try:
            while True:
                is_timekeeper, due = await self._ask(worker)
                if not is_timekeeper:
                    return
                if due == 0:
                    await self._server.clock.sleep(HANDOVER_SECONDS)
                elif due < 0:
                    await self._sleep(MAX_SLEEP_SECONDS)
                else:
                    await self._sleep(min(due / 1000, MAX_SLEEP_SECONDS))
        except StoreError:
            return
        finally:
            if self._ringing is not None:
                ringing, self._ringing = self._ringing, None
                ringing.cancel()
                await asyncio.gather(ringing, return_exceptions=True)

    async def _ask(self, worker: str, term: float = TIMEKEEPER_TERM_SECONDS) -> tuple[int, int]:
        """Return 1 if the worker is the timekeeper, else 0; and the milliseconds until the next job is ready, or -1."""
        args = (self._queue.text, worker, round(term * 1000))
        is_timekeeper, due = await self._server.run("due", (self._queue.root,), *args, unanswered=True)
        return is_timekeeper, due

    async def _sleep(self, seconds: float) -> None:
        """Sleep until a push to the bell, for at most ``seconds``.

        The sleep uses the local clock, since servers check timeouts only ten times a second.
        """
        if self._ringing is None:
            self._ringing = asyncio.create_task(self._listen(), name=f"bell {self._queue.name}")
        alarm = asyncio.ensure_future(self._server.clock.sleep(seconds))
        try:
            await asyncio.wait((self._ringing, alarm), return_when=asyncio.FIRST_COMPLETED)
        finally:
            alarm.cancel()
        if self._ringing.done():
            ringing, self._ringing = self._ringing, None
            ringing.result()

    async def _listen(self) -> None:
        if self._client is None:
            self._client = self._server.dialer.blocking_client(LISTEN_TIMEOUT_SECONDS)
        with translated(self._server.address):
            await self._client.execute_command("BLPOP", self._bell, LISTEN_TIMEOUT_SECONDS)


async def _set(event: asyncio.Event) -> bool:
    return await event.wait()
